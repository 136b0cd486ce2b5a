/* serve_sites.h - what fmstore serve answers beside prompts: this repository as a remote, and as a
 * Hub. */
#ifndef FM_CLI_CMD_SERVE_SITES_H
#define FM_CLI_CMD_SERVE_SITES_H

#include "infer/serve/site.h"
#include "remote/hub_serve.h"
#include "remote/serve.h"

typedef struct serve_sites {
    bool remote, remote_write, hub; /* what is asked for; the others follow */
    fm_remote_web *remote_web;
    fm_hub_web *hub_web;
    fm_server_site site[3]; /* for fm_server_opts */
} serve_sites;
/* dir: of the repository. */
FM_CHECKED fm_status serve_sites_open(serve_sites *s, const char *dir);
void serve_sites_close(serve_sites *s); /* the server has ended */
/* Says what is served, a line each. */
void serve_sites_announce(const serve_sites *s);

#endif
