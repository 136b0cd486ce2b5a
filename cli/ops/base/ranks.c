/* ranks.c - starts the ranks of a command, or joins as one of them. */
#include "cli/ops/base/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "infer/comm_launch.h"
#include "store/base/mem.h"

/* After so long a silence a peer counts as lost; the death of a peer is seen at once. */
#define PATIENCE_S 3600.0

static bool begun(uint32_t *rank)
{
    uint32_t size;
    bool launched;
    fm_ranks_place(rank, &size, &launched);
    return launched || size > 1;
}

fm_status fmo_ranks_settle(fm_ops *c)
{
    uint32_t rank, size, s = c->stages, t = c->split;
    bool launched;
    fm_ranks_place(&rank, &size, &launched);
    uint32_t all = launched || size > 1 ? size : c->ranks;
    if (s == 0 && t == 0)
        return FM_OK;
    if (all == 0)
        all = FM_MAX(s, 1u) * FM_MAX(t, 1u);
    if (s == 0 && all % t == 0)
        s = all / t;
    if (s == 0 || all % s != 0 || (t && s * t != all)) {
        char wanted[64];
        if (s && t)
            (void)snprintf(wanted, sizeof(wanted), "%u stages of %u ranks", s, t);
        else
            (void)snprintf(wanted, sizeof(wanted), t ? "stages of %u ranks" : "%u equal stages",
                           t ? t : s);
        return fm_fail(FM_EINVAL, "%u ranks are not %s", all, wanted);
    }
    if (all > FM_COMM_MAX_RANKS)
        return fm_fail(FM_EINVAL, "%u stages of %u ranks are more than %u ranks", s, t,
                       FM_COMM_MAX_RANKS);
    c->ranks = all;
    c->stages = s;
    return FM_OK;
}

bool fmo_ranks_wanted(const fm_ops *c)
{
    uint32_t rank;
    return c->ranks > 1 || begun(&rank);
}

uint32_t fmo_ranks_mine(void)
{
    uint32_t rank;
    return begun(&rank) ? rank : 0;
}

uint32_t fmo_ranks_count(const fm_ops *c)
{
    uint32_t rank, size;
    bool launched;
    fm_ranks_place(&rank, &size, &launched);
    return launched || size > 1 ? size : FM_MAX(c->ranks, 1u);
}

/* Splits the processors of a host, so that its ranks do not wait for each other. */
static void share_processors(fm_ops *c, uint32_t ranks_here)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (c->threads == 0 && n > 0)
        c->threads = FM_MAX(1u, (unsigned)n / ranks_here);
}

static uint32_t ranks_of_this_node(const fm_comm *comm)
{
    uint32_t here = 0;
    for (uint32_t i = 0; i < fm_comm_size(comm); i++)
        here += fm_comm_node(comm, i) == fm_comm_node(comm, fm_comm_rank(comm));
    return here;
}

fm_status fmo_ranks_open(fm_ops *c, bool all_run_it)
{
    static char self[] = "fmstore", follow[] = "follow";
    char *const follower[] = {self, follow, NULL};
    /* a follower waits for requests without limit */
    const double step_timeout_s = all_run_it ? PATIENCE_S : 0.0;
    uint32_t rank;
    if (c->comm)
        return FM_OK;
    if (begun(&rank)) {
        FM_TRY(fm_ranks_join(&c->comm, step_timeout_s));
        c->ranks = fm_comm_size(c->comm);
        share_processors(c, ranks_of_this_node(c->comm));
        return FM_OK;
    }
    share_processors(c, c->ranks);
    return fm_ranks_launch(&c->others, &c->comm, c->ranks, all_run_it ? c->argv : follower,
                           step_timeout_s);
}

fm_status fmo_ranks_tell_engine(fm_ops *c)
{
    fm_buf text;
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    fm_buf_init(&text, 0);
    fm_json_put(&rc, o, "repo", fm_json_new_str(c->repo ? fm_repo_path(c->repo) : c->dir));
    fm_json_put(&rc, o, "mode", fm_json_new_str(c->mode ? c->mode : "exact"));
    if (c->device)
        fm_json_put(&rc, o, "device", fm_json_new_str(c->device));
    fm_json_put(&rc, o, "threads", fm_json_new_int(c->threads));
    fm_json_put(&rc, o, "stages", fm_json_new_int(c->stages));
    fm_json_put(&rc, o, "weights", fm_json_new_int((int64_t)c->weight_bytes_max));
    fm_json_put(&rc, o, "kv", fm_json_new_int((int64_t)c->kv_bytes));
    fm_json_put(&rc, o, "step_timeout", fm_json_new_int(c->step_timeout_s));
    fm_json_put(&rc, o, "stored", fm_json_new_bool(c->keep_stored));
    fm_json_put(&rc, o, "packed", fm_json_new_bool(c->keep_packed));
    FM_THEN(rc, fm_json_write(&text, o, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_comm_tell_buf(c->comm, &text, 0));
    fm_json_free(o);
    fm_buf_release(&text);
    return rc;
}

fm_status fmo_ranks_card(const fm_ops *c, const char **device, char text[RANKS_CARD_BYTES])
{
    uint32_t cards = 0, before = 0, mine = fm_comm_rank(c->comm);
    if (!c->comm || !*device || strncmp(*device, "cuda", 4) != 0)
        return FM_OK;
    for (uint32_t r = 0; r < mine; r++)
        before += fm_comm_node(c->comm, r) == fm_comm_node(c->comm, mine);
    const char *colon = strchr(*device, ':');
    unsigned long first = colon ? strtoul(colon + 1, NULL, 10) : 0;
    fm_status rc = fm_device_count(&cards);
    if (rc != FM_OK || cards == 0 || first >= cards)
        return rc; /* opening the device reports it */
    (void)snprintf(text, RANKS_CARD_BYTES, "cuda:%u", ((uint32_t)first + before) % cards);
    *device = text;
    return FM_OK;
}

void fmo_ranks_close(fm_ops *c)
{
    fm_comm_free(c->comm);
    fm_ranks_wait(c->others, NULL);
    c->comm = NULL;
    c->others = NULL;
}
