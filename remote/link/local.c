/* local.c - a repository of this machine: a thread of this process answers for it, over a socket,
 * as the process at the other end of ssh does; records alone go without it. */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "remote/link/open.h"
#include "remote/link/socket.h"
#include "remote/wire/peer.h"
#include "store/base/mem.h"

typedef struct local {
    fmr_fds near; /* first: it is the stream's ctx, by which close_local finds the rest */
    fmr_fds far;
    fm_repo *repo;
    fmr_peer *peer;
    pthread_t thread;
    bool running;
} local;

static void *answer(void *ctx)
{
    local *l = ctx;
    const fmr_stream s = fmr_fds_stream(&l->far);
    fm_ignore(fmr_peer_run(l->peer, &s), "it was told to the near side");
    (void)shutdown(l->far.in, SHUT_RDWR);
    return NULL;
}

static void close_local(void *ctx)
{
    local *l = ctx;
    if (l->near.in >= 0)
        (void)shutdown(l->near.in, SHUT_RDWR);
    if (l->running)
        (void)pthread_join(l->thread, NULL);
    if (l->near.in >= 0) {
        (void)close(l->near.in);
        (void)close(l->far.in);
    }
    fmr_peer_free(l->peer);
    fm_repo_close(l->repo);
    fm_free(l);
}

static fm_status begin(local *l, const fmr_url *url, fmr_service service)
{
    int pair[2];
    bool yes;
    FM_TRY(fm_repo_is(url->path, &yes));
    if (!yes)
        return fm_fail(FM_ENOTFOUND, "'%s' is no repository of fmstore", url->path);
    FM_TRY(fm_repo_open(&l->repo, url->path));
    FM_TRY(fmr_peer_new(&l->peer, l->repo, service));
    FM_TRY(fmr_socket_pair(pair));
    l->near.in = l->near.out = pair[0];
    l->far.in = l->far.out = pair[1];
    l->far.peer = "the client";
    l->running = pthread_create(&l->thread, NULL, answer, l) == 0;
    return l->running ? FM_OK : fm_fail(FM_ENOMEM, "no thread for '%s'", url->path);
}

fm_status fmr_open_folder(fmr_far **out, const fmr_url *url, fmr_service service)
{
    *out = NULL;
    local *l = fm_calloc(1, sizeof *l);
    if (!l)
        return FM_ENOMEM;
    l->near.in = l->near.out = -1;
    fm_status rc = begin(l, url, service);
    if (rc != FM_OK) {
        close_local(&l->near);
        return rc;
    }
    const fmr_stream s = fmr_fds_stream(&l->near);
    l->near.peer = "the remote";
    FM_TRY(fmr_client_new(out, &s, close_local, url->text, service));
    fmr_client_beside(*out, l->peer);
    return FM_OK;
}
