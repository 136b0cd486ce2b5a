/* credential.h - user and password for a host of HTTP, from git's credential helpers. */
#ifndef FM_REMOTE_LINK_CREDENTIAL_H
#define FM_REMOTE_LINK_CREDENTIAL_H

#include "remote/link/url.h"

FM_BEGIN_DECLS

typedef struct fmr_credential {
    char *user, *password; /* password is wiped by the release */
} fmr_credential;
/* Asks `git credential fill`, which asks the user where a terminal is at hand, and nobody else.
 * FM_ENOTFOUND: no helper knows any, or there is no git. */
FM_CHECKED fm_status fmr_credential_fill(fmr_credential *out, const fmr_url *url);
/* Tells the helpers that it worked, so that they may keep it, or that it was refused. */
void fmr_credential_tell(const fmr_credential *c, const fmr_url *url, bool worked);
void fmr_credential_release(fmr_credential *c);

/* The certificates to trust for https (a PEM file): $GIT_SSL_CAINFO, else `given` (may be NULL),
 * else git's http.sslCAInfo for this URL. NULL: the system's. fm_free. */
char *fmr_ca_file(const fmr_url *url, const char *given);

/* The value that git has set for a key like "http.sslCAInfo" and this URL; NULL: none. fm_free. */
char *fmr_git_setting(const char *key, const fmr_url *url);

FM_END_DECLS
#endif
