/* perturb.h - another way to write a prompt. A perturbation is a pure function of the text, its
 * options and a seed: no state, no clock, the same on every machine.
 *
 * The kinds are those of CheckList (Ribeiro et al. 2020) and a few of the robustness suites. What
 * looks at words knows English only. A perturbation that has nothing to take hold of (no name, no
 * verb that it can negate) does not apply: it says so and invents nothing. */
#ifndef FM_TESTING_PERTURB_H
#define FM_TESTING_PERTURB_H

#include "testing/cases/expansion.h"
#include "testing/cases/lexicon.h"

typedef enum fmi_perturb_kind {
    FMI_TYPOS,        /* n pairs of neighbouring letters of a word change places */
    FMI_CONTRACTIONS, /* "is not" <-> "isn't" */
    FMI_NAMES,        /* a first name becomes another, everywhere alike */
    FMI_LOCATIONS,    /* a city or country likewise */
    FMI_NUMBERS,      /* a whole number becomes another of as many digits */
    FMI_NEGATION,     /* "is" -> "is not" and back: changes the meaning */
    FMI_CASING,
    FMI_PUNCTUATION,
    FMI_PREFIX, /* text in front, with a space between */
    FMI_SUFFIX,
    FMI_NEUTRAL, /* a sentence that says nothing, in front */
    FMI_WHITESPACE,
    FMI_PERTURBATIONS
} fmi_perturb_kind;

/* What `mode` (FMI_CASING: `to`) says; 0 is the default of each kind. */
typedef enum fmi_perturb_mode {
    FMI_MODE_ANY,
    FMI_MODE_ADD,
    FMI_MODE_REMOVE, /* strip */
    FMI_MODE_EXPAND,
    FMI_MODE_CONTRACT,
    FMI_MODE_UPPER,
    FMI_MODE_LOWER,
    FMI_MODE_TITLE
} fmi_perturb_mode;

typedef struct fmi_perturbation {
    fmi_perturb_kind kind;
    fmi_perturb_mode mode;
    uint32_t n;       /* FMI_TYPOS: swaps */
    uint32_t count;   /* forms wanted of one prompt */
    uint64_t seed;    /* of the first form; form k of a prompt uses seed + k, .. */
    const char *text; /* FMI_PREFIX, FMI_SUFFIX */
    fm_span salt;     /* draw as for this text, so that several prompts change alike; data NULL: as
                         for the text itself */
    fmi_words words;  /* FMI_NAMES, FMI_LOCATIONS: instead of the built-in lists; own and builtin
                         NULL: those */
} fmi_perturbation;

extern const char *const fmi_perturb_words[FMI_PERTURBATIONS]; /* "typos", ... */

/* Appends the perturbed text. *applies false: out is as it was. */
fm_status fmi_perturb(fm_buf *out, const fmi_perturbation *p, fm_span text, uint64_t seed,
                      bool *applies);

/* Draws of one perturbation of one text. */
typedef struct fmi_draw {
    uint64_t seed, stream, at;
} fmi_draw;
uint64_t fmi_draw_below(fmi_draw *d, uint64_t n);
bool fmi_letter(uint8_t c); /* ASCII letters; bytes of other scripts count as letters */

/* perturb_words.c: kinds that know words. Each appends and sets *applies as fmi_perturb does. */
fm_status fmi_perturb_contractions(fm_buf *out, const fmi_perturbation *p, fm_span text,
                                   fmi_draw *d, bool *applies);
fm_status fmi_perturb_swap(fm_buf *out, const fmi_perturbation *p, fm_span text, fmi_draw *d,
                           bool *applies);
fm_status fmi_perturb_negation(fm_buf *out, const fmi_perturbation *p, fm_span text, fmi_draw *d,
                               bool *applies);

/* perturb_case.c: a case with `perturb` becomes one without: its prompt and the perturbed forms of
 * it, kind INV unless it says DIR. room: the suite's lexicons, and what may still be written and
 * done. Consumes *doc in every event; *doc is NULL on failure. every: each perturbation must apply
 * (a case), else those that do not are left out and, when none does, *doc is NULL with FM_OK (a
 * filling of a template). */
fm_status fmi_perturb_case(fm_json **doc, fmi_expansion_room *room, bool every, const char *what);
/* Up to n cases pushed to the array cases: c as it is but for its prompt, perturbed, and its name. */
fm_status fmi_perturbed_forms(fm_json *cases, const fmi_case *c, uint64_t seed, size_t n);

#endif
