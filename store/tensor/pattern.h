/* pattern.h - Python's regular expressions, as far as PEFT's configs use them on names of modules,
 * by POSIX extended ones: literals, classes, groups, alternatives, * + ?, \d \w \s; a lazy repeat
 * matches whatever a greedy one does, since the whole text must match. Refused by name: what looks
 * around or back, counted repeats (a short pattern may need any memory), other escapes. */
#ifndef FM_STORE_PATTERN_H
#define FM_STORE_PATTERN_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* Whether pattern has a character that means anything but itself, the dot aside. */
bool fm_pattern_is_regex(const char *pattern);
/* re.fullmatch(pattern, text). what: where the pattern stands, for errors. FM_EUNSUPPORTED. */
FM_CHECKED fm_status fm_pattern_matches(bool *out, const char *pattern, const char *text,
                                        const char *what);

FM_END_DECLS
#endif
