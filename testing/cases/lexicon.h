/* lexicon.h - named lists of words: the built-in ones, and those that a suite brings along. */
#ifndef FM_TESTING_LEXICON_H
#define FM_TESTING_LEXICON_H

#include "testing/testing.h"

/* A list of a few words of our own choosing, ended by NULL; NULL: no such lexicon. SUITES.md names
 * them. */
const char *const *fmv_lexicon_builtin(const char *name);
/* The i-th built-in lexicon's name, NULL at the end: for error texts. */
const char *fmv_lexicon_name(size_t i);

/* A list of words from either source; own wins. */
typedef struct fmv_words {
    const char *const *builtin; /* NULL-ended */
    const fm_json *own;         /* array of strings, or of mappings with a `name` */
} fmv_words;
size_t fmv_words_count(const fmv_words *w);
const char *fmv_words_at(const fmv_words *w, size_t i); /* "" for an entry without text */

/* lexicons: the suite's mapping of name to list, or NULL. What is misshapen is refused by name. */
fm_status fmv_lexicons_check(const fm_json *lexicons, const char *where);
/* FM_EINVAL "<where>: no lexicon 'x' (...)". */
fm_status fmv_words_find(fmv_words *out, const fm_json *lexicons, const char *name,
                         const char *where);

#endif
