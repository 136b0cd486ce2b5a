/* serve.c - answers on file descriptors. */
#include "remote/serve.h"

#include "remote/link/socket.h"
#include "remote/wire/peer.h"

fm_status fm_remote_serve(fm_repo *r, bool write, int in, int out)
{
    fmr_fds fds = {in, out, "the client"};
    const fmr_stream s = fmr_fds_stream(&fds);
    fmr_peer *p;
    FM_TRY(fmr_peer_new(&p, r, write ? FMR_WRITE : FMR_READ));
    fm_status rc = fmr_peer_run(p, &s);
    fmr_peer_free(p);
    return rc;
}
