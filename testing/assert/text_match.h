/* text_match.h - comparison of texts, and patterns with limits. */
#ifndef FM_TESTING_TEXT_MATCH_H
#define FM_TESTING_TEXT_MATCH_H

#include "store/base/text/regex.h"
#include "testing/testing.h"

fm_status fmv_pattern_compile(fm_regex **out, const char *pattern, bool ignore_case,
                              const char *where);
/* FM_ELIMIT: the search reached its limit. */
fm_status fmv_pattern_found(const fm_regex *regex, fm_span text, bool *found);
/* The next match at or after *at; *at is moved behind it. got: its first group that is not empty,
 * or the whole match if there are no groups. *found false: there is no match. */
fm_status fmv_pattern_next(const fm_regex *regex, fm_regex_run *run, fm_span text, size_t *at,
                           fm_span *got, bool *found);
/* For all matches in one text, which have one limit; the caller frees it. */
fm_status fmv_pattern_run(fm_regex_run **out);
fm_span fmv_trim(fm_span s);
bool fmv_text_equal(fm_span a, fm_span b, bool ignore_case);
bool fmv_text_contains(fm_span text, fm_span part, bool ignore_case);
/* The beginning of a text for people: at most max bytes, no code point cut. */
fm_span fmv_clip(fm_span s, size_t max);
/* The code point at *at; *at is moved behind it. U+FFFD for a byte that begins no code point. */
uint32_t fmv_next_point(fm_span s, size_t *at);
bool fmv_is_blank(uint32_t point); /* Unicode's white space, as Python's split() */
size_t fmv_count_points(fm_span s);
size_t fmv_count_words(fm_span s);

#endif
