/* comm_group.c - some ranks of a comm as a comm: wires whose peers are renumbered, over those that
 * are there. So whatever comm.c promises of sums holds in a group, and a rank's messages stay in
 * one line whichever comm they are sent through. */
#include "infer/comm_wire.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

typedef struct group_wire {
    fm_wire wire;
    fm_comm *c;
    uint32_t member[FM_COMM_MAX_RANKS]; /* [wire.size] */
    fm_move move[2 * FM_COMM_MAX_RANKS];
} group_wire;

static fm_status exchange(fm_wire *w, const fm_move *list, uint32_t n)
{
    group_wire *g = (group_wire *)w;
    const uint32_t most = FM_ARRAY_LEN(g->move);
    for (uint32_t at = 0, k; at < n; at += k) {
        k = FM_MIN(n - at, most);
        for (uint32_t i = 0; i < k; i++) {
            g->move[i] = list[at + i];
            g->move[i].peer = g->member[list[at + i].peer];
        }
        fm_status rc = fm_comm_moves(g->c, w->device, g->move, k);
        if (rc != FM_OK)
            return rc;
    }
    return FM_OK;
}

static fm_status alive(fm_wire *w)
{
    return fm_comm_check(((group_wire *)w)->c);
}

static fm_status settled(fm_wire *w, bool *done)
{
    *done = true;
    return fm_comm_settle(((group_wire *)w)->c);
}

static void close_group(fm_wire *w)
{
    fm_free(w);
}

static fm_status open_wire(fm_wire **out, fm_comm *c, const uint32_t *member, uint32_t n,
                           bool device)
{
    group_wire *g = fm_calloc(1, sizeof(*g));
    *out = NULL;
    if (!g)
        return FM_ENOMEM;
    g->c = c;
    g->wire = (fm_wire){.name = fm_comm_wire(c),
                        .size = n,
                        .device = device,
                        .exchange = exchange,
                        .alive = alive,
                        .settled = device ? settled : NULL,
                        .close = close_group};
    memcpy(g->member, member, n * sizeof(*member));
    while (g->wire.rank < n && member[g->wire.rank] != fm_comm_rank(c))
        g->wire.rank++;
    *out = &g->wire;
    return FM_OK;
}

static fm_status check(const fm_comm *c, const uint32_t *member, uint32_t n)
{
    bool good = n > 0 && n <= fm_comm_size(c), mine = false;
    for (uint32_t i = 0; good && i < n; i++) {
        good = member[i] < fm_comm_size(c) && (i == 0 || member[i] > member[i - 1]);
        mine = mine || member[i] == fm_comm_rank(c);
    }
    return good && mine ? FM_OK
                        : fm_fail(FM_EINVAL,
                                  "a group of %u of %u ranks: numbers ascend, and rank %u, which "
                                  "asks, is one of them",
                                  n, fm_comm_size(c), fm_comm_rank(c));
}

fm_status fm_comm_group(fm_comm **out, fm_comm *c, fm_backend *be, const uint32_t *member,
                        uint32_t n)
{
    fm_wire *host = NULL, *device = NULL;
    char node[32];
    *out = NULL;
    fm_status rc = check(c, member, n);
    if (rc == FM_OK && n > 1)
        rc = open_wire(&host, c, member, n, false);
    if (rc == FM_OK && n > 1)
        rc = open_wire(&device, c, member, n, true);
    if (rc != FM_OK) {
        fm_free(host);
        return rc;
    }
    (void)snprintf(node, sizeof(node), "node %u", fm_comm_node(c, fm_comm_rank(c)));
    rc = fm_comm_new(out, host, node);
    if (rc != FM_OK) {
        fm_free(device);
        return rc;
    }
    fm_comm_attach(*out, be, device, false);
    return FM_OK;
}
