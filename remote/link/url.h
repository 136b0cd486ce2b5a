/* url.h - the addresses of remotes, in git's spellings.
 *
 *   /a/b, ../b, file:///a/b          a folder of this machine
 *   ssh://user@host:port/a/b         a folder of another one; host:a/b and user@host:a/b too, where
 *                                    no '/' stands before the colon
 *   http://, https://host/a          fmstore's own server, or a static file server
 *   git://host/a                     a git host's own protocol, for a lineage alone
 *   s3://bucket/prefix               object storage */
#ifndef FM_REMOTE_LINK_URL_H
#define FM_REMOTE_LINK_URL_H

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMR_URL_MAX 2048u

typedef enum fmr_scheme { FMR_FOLDER, FMR_SSH, FMR_HTTP, FMR_S3, FMR_GIT } fmr_scheme;
typedef struct fmr_url {
    fmr_scheme scheme;
    char *user;    /* ssh; NULL: none given. All four: fm_free by fmr_url_release */
    char *host;    /* ssh, http and git without the port; s3: the bucket; NULL for a folder */
    char *path;    /* of a folder or ssh as it is given; s3: the prefix without slashes around it */
    char *text;    /* the whole URL; http without user and password */
    unsigned port; /* 0: the scheme's */
} fmr_url;
/* FM_EINVAL: an unknown scheme, a control byte, an ssh host or path that begins with '-' (ssh would
 * take it for an option), a password in an ssh URL, or no path. The text shows no password. */
FM_CHECKED fm_status fmr_url_parse(fmr_url *out, const char *text);
void fmr_url_release(fmr_url *u);

FM_END_DECLS
#endif
