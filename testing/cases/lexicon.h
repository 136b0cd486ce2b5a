/* lexicon.h - named lists of words: built-in ones, and those of a suite. */
#ifndef FM_TESTING_LEXICON_H
#define FM_TESTING_LEXICON_H

#include "testing/testing.h"

/* A built-in list of a few words, ended by NULL; NULL: no such lexicon. SUITES.md lists them. */
const char *const *fmv_lexicon_builtin(const char *name);
/* The i-th built-in lexicon's name, NULL at the end: for error texts. */
const char *fmv_lexicon_name(size_t i);

/* A list of words, built-in or of the suite; own is used where both are set. */
typedef struct fmv_words {
    const char *const *builtin; /* NULL-ended */
    const fm_json *own;         /* array of strings, or of mappings with a `name` */
} fmv_words;
size_t fmv_words_count(const fmv_words *w);
const char *fmv_words_at(const fmv_words *w, size_t i); /* "" for an entry without text */

/* Checks the suite's mapping of name to list, or NULL; an error names the wrong entry. */
fm_status fmv_lexicons_check(const fm_json *lexicons, const char *where);
/* FM_EINVAL "<where>: no lexicon 'x' (...)". */
fm_status fmv_words_find(fmv_words *out, const fm_json *lexicons, const char *name,
                         const char *where);

#endif
