/* regex.h - regular expressions: the only door to PCRE2. A pattern and a text may both be
 * untrusted, so compiling and matching have limits; beyond them the status is FM_ELIMIT. */
#ifndef FM_STORE_REGEX_H
#define FM_STORE_REGEX_H

#include "store/base/cursor.h"
#include "store/base/error.h"

FM_BEGIN_DECLS

#define FM_REGEX_MAX_BYTES ((size_t)1 << 20) /* longest pattern; callers may allow less */

typedef struct fm_regex fm_regex;         /* compiled; immutable */
typedef struct fm_regex_run fm_regex_run; /* one caller's match state */

enum fm_regex_flags {
    FM_REGEX_CASELESS = 1 << 0,
    FM_REGEX_WHOLE = 1 << 1, /* it matches a whole text or none of it */
    FM_REGEX_OFTEN = 1 << 2, /* compiled to machine code; texts to match must be valid UTF-8 */
};

/* The version of Unicode whose classes \p{..} stands for, like "14.0.0"; out has room for 32. */
void fm_regex_unicode(char out[32]);
/* where: what holds the pattern, for errors. FM_EINVAL: PCRE2 does not take it. */
FM_CHECKED fm_status fm_regex_new(fm_regex **out, fm_span pattern, unsigned flags,
                                  const char *where);
void fm_regex_free(fm_regex *re);
/* match_steps: the limit of one match; vain_steps: the limit of all steps together that were spent
 * in vain, before a match was tried again with ten times as many. */
FM_CHECKED fm_status fm_regex_run_new(fm_regex_run **out, uint32_t match_steps, size_t vain_steps);
void fm_regex_run_free(fm_regex_run *run);
/* The first match in text at or after from. *found false: none; *begin and *end are unchanged. */
FM_CHECKED fm_status fm_regex_next(const fm_regex *re, fm_regex_run *run, fm_span text, size_t from,
                                   bool *found, size_t *begin, size_t *end);
/* Begin and end of the run's last successful match, then of each of its groups (SIZE_MAX where a
 * group took no part). *count: the number of pairs, the whole match included. */
const size_t *fm_regex_groups(const fm_regex_run *run, size_t *count);

/* ---- patterns of PEFT's configs, on names of modules ---- */

/* Whether pattern has a character other than the dot that does not stand for itself. */
bool fm_pattern_is_regex(const char *pattern);
/* Python's re.fullmatch(pattern, text). FM_EUNSUPPORTED: the pattern has a construct that only
 * PCRE2 knows, or that Python reads otherwise. where: as for fm_regex_new. */
FM_CHECKED fm_status fm_pattern_matches(bool *out, const char *pattern, const char *text,
                                        const char *where);

FM_END_DECLS
#endif
