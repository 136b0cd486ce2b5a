/* template.h - shared by template.c (which fillings there are) and template_fill.c (their text). */
#ifndef FM_TESTING_TEMPLATE_H
#define FM_TESTING_TEMPLATE_H

#include "testing/cases/expansion.h"
#include "testing/cases/lexicon.h"

#define FMV_VARIABLES_MAX 32u
#define FMV_NESTING_MAX 8u /* slots within the values of slots */

/* A variable for which a filling chooses a value: a slot, a lexicon, or a numbered draw of either
 * ({name1}, {name2}: different entries of one list). */
typedef struct fmv_variable {
    char name[72];
    fmv_words list;
    bool lexicon;  /* not one of `slots` */
    bool nested;   /* its texts may hold slots */
    size_t chosen; /* the index of its value */
    bool open;     /* being written: a value that contains itself finds this set */
} fmv_variable;

/* One filling: the row, and a value for each variable. */
typedef struct fmv_filling {
    const char *where;  /* "<file>: template 'capital-{id}'" */
    const fm_json *row; /* the row, of a template with rows; else NULL */
    bool nested;        /* values of rows may hold slots */
    size_t number;      /* value of {#}: 1, 2, .. over the template */
    fmv_variable *v;    /* [count] */
    size_t count;
    fmv_expansion_room *room;
} fmv_filling;

/* A slot as it is written in a text: {a:person1.city}. */
typedef struct fmv_slot_ref {
    const char *name; /* in the text, len bytes: "person1.city" */
    size_t len;
    int article; /* 0, 'a', 'A' */
} fmv_slot_ref;
/* Reads the slot at text (a '{'); returns its length with the braces, 0: it has no end. */
size_t fmv_slot_at(fmv_slot_ref *out, const char *text);

/* Calls each for every slot in the strings of v (except in `slots` of the top level). */
typedef fm_status (*fmv_ref_fn)(void *ctx, const char *name, size_t len);
fm_status fmv_slots_of(const fm_json *v, fmv_ref_fn each, void *ctx, int depth);
fm_status fmv_slots_of_text(const char *text, fmv_ref_fn each, void *ctx);

/* The template with f filled in, without the keys that define fillings. */
fm_status fmv_fill(fm_json **out, const fm_json *tmpl, fmv_filling *f);

#endif
