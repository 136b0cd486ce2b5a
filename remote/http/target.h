/* target.h - where a request goes: its URL taken apart, and redirects looked at. */
#ifndef FM_REMOTE_HTTP_TARGET_H
#define FM_REMOTE_HTTP_TARGET_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

/* Takes user and password (NULL: none) out of a URL, so that no text can show them; all three:
 * fm_free. FM_EINVAL: it is no http:// or https:// URL. */
FM_CHECKED fm_status fmr_target_read(char **url, char **user, char **password, const char *text);

/* Where a redirect leads that came from the URL `here`, as a whole URL without what it has of
 * credentials. *same: scheme, host and port are those of the URL `home`. FM_EIO: not to http or
 * https, or from https to http. */
FM_CHECKED fm_status fmr_target_redirect(char **out, bool *same, fm_span location, const char *here,
                                         const char *home);

bool fmr_has_control(const char *text); /* NULL: no */

FM_END_DECLS
#endif
