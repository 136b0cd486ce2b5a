/* perturb.h - other ways to write a prompt. A perturbation is a pure function of the text, its
 * options and a seed: no state, no clock, the same on every machine.
 *
 * The kinds are those of CheckList (Ribeiro et al. 2020) and a few of robustness suites. Kinds that
 * need words know English only. A perturbation that finds nothing to change (no name, no verb that
 * it can negate) does not apply: it reports so and invents nothing. */
#ifndef FM_TESTING_PERTURB_H
#define FM_TESTING_PERTURB_H

#include "testing/cases/expansion.h"
#include "testing/cases/lexicon.h"

typedef enum fmv_perturb_kind {
    FMV_TYPOS,        /* n pairs of neighbouring letters of a word are swapped */
    FMV_CONTRACTIONS, /* "is not" <-> "isn't" */
    FMV_NAMES,        /* a first name becomes another, the same everywhere */
    FMV_LOCATIONS,    /* a city or country likewise */
    FMV_NUMBERS,      /* a whole number becomes another with as many digits */
    FMV_NEGATION,     /* "is" -> "is not" and back: changes the meaning */
    FMV_CASING,
    FMV_PUNCTUATION,
    FMV_PREFIX, /* text in front, with a space between */
    FMV_SUFFIX,
    FMV_NEUTRAL, /* a sentence without content, in front */
    FMV_WHITESPACE,
    FMV_PERTURBATIONS
} fmv_perturb_kind;

/* Values of `mode` (FMV_CASING: `to`); 0 is the default of each kind. */
typedef enum fmv_perturb_mode {
    FMV_MODE_ANY,
    FMV_MODE_ADD,
    FMV_MODE_REMOVE, /* strip */
    FMV_MODE_EXPAND,
    FMV_MODE_CONTRACT,
    FMV_MODE_UPPER,
    FMV_MODE_LOWER,
    FMV_MODE_TITLE
} fmv_perturb_mode;

typedef struct fmv_perturbation {
    fmv_perturb_kind kind;
    fmv_perturb_mode mode;
    uint32_t n;       /* FMV_TYPOS: swaps */
    uint32_t count;   /* forms wanted of one prompt */
    uint64_t seed;    /* seed of the first form; form k of a prompt uses seed + k, .. */
    const char *text; /* FMV_PREFIX, FMV_SUFFIX */
    /* draw as for this text, so that prompts change alike; data NULL: for the text itself */
    fm_span salt;
    fmv_words words; /* FMV_NAMES, FMV_LOCATIONS; both NULL: built-in lists */
} fmv_perturbation;

extern const char *const fmv_perturb_words[FMV_PERTURBATIONS]; /* "typos", ... */

/* Appends the perturbed text. *applies false: out is unchanged. */
fm_status fmv_perturb(fm_buf *out, const fmv_perturbation *p, fm_span text, uint64_t seed,
                      bool *applies);

/* The random draws of one perturbation of one text. */
typedef struct fmv_draw {
    uint64_t seed, stream, at;
} fmv_draw;
uint64_t fmv_draw_below(fmv_draw *d, uint64_t n);
bool fmv_letter(uint8_t c); /* ASCII letters; bytes of other scripts count as letters */

/* perturb_words.c: kinds that use lists of words, with the result as of fmv_perturb. */
fm_status fmv_perturb_contractions(fm_buf *out, const fmv_perturbation *p, fm_span text,
                                   fmv_draw *d, bool *applies);
fm_status fmv_perturb_swap(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d,
                           bool *applies);
fm_status fmv_perturb_negation(fm_buf *out, const fmv_perturbation *p, fm_span text, fmv_draw *d,
                               bool *applies);

/* perturb_case.c: turns a case with `perturb` into one without: its prompt and the perturbed forms
 * of the prompt, kind INV unless the case says DIR. room: the suite's lexicons and limits. Consumes
 * *doc in every case; *doc is NULL on failure. every: each perturbation must apply (a case); else
 * others are left out and, if none applies, *doc is NULL with FM_OK (a filling of a template). */
fm_status fmv_perturb_case(fm_json **doc, fmv_expansion_room *room, bool every, const char *what);
/* Pushes up to n cases to the array cases: copies of c with a perturbed prompt and another name. */
fm_status fmv_perturbed_forms(fm_json *cases, const fmv_case *c, uint64_t seed, size_t n);

#endif
