/* open.h - the far side of a URL. */
#ifndef FM_REMOTE_LINK_OPEN_H
#define FM_REMOTE_LINK_OPEN_H

#include "remote/link/url.h"
#include "remote/wire/client.h"

FM_BEGIN_DECLS

typedef struct fmr_open_opts {
    const char *ssh;     /* the command that stands for ssh, run by the shell; NULL: ssh.
                      * $GIT_SSH_COMMAND goes before it */
    const char *program; /* fmstore at the other end of ssh; NULL: fmstore */
    const char *ca_file; /* NULL: what git is set to, else the system's */
} fmr_open_opts;
/* FM_ENOTFOUND: there is no repository at the URL; FM_EUNSUPPORTED: a git host's. */
FM_CHECKED fm_status fmr_open(fmr_far **out, const fmr_url *url, fmr_service service,
                              const fmr_open_opts *opts);

/* local.c, ssh.c, http.c */
FM_CHECKED fm_status fmr_open_folder(fmr_far **out, const fmr_url *url, fmr_service service);
FM_CHECKED fm_status fmr_open_ssh(fmr_far **out, const fmr_url *url, fmr_service service,
                                  const fmr_open_opts *opts);
/* FM_ENOTFOUND: no fmstore server answers there; what does may be a static file server. */
FM_CHECKED fm_status fmr_open_http(fmr_far **out, const fmr_url *url, fmr_service service,
                                   const fmr_open_opts *opts);

FM_END_DECLS
#endif
