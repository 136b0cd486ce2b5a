/* comm_device.c - which wire carries the buffers of a device: its module's own, or the host's; and
 * which of its messages meet. */
#include "infer/comm_wire.h"

#include <string.h>

#include "infer/module.h"
#include "store/base/rng.h"

const char *fm_link_name(fm_link link)
{
    static const char *const name[FM_LINKS] = {"self", "NVLink", "PCIe", "host", "network"};
    return (unsigned)link < FM_LINKS ? name[link] : "unknown";
}

/* What a rank can do; all must be able to. */
typedef struct can {
    uint32_t nccl, direct, card;
} can;

/* Two ranks of one node on one card cannot be in one communicator. */
static bool cards_apart(const fm_comm *c, const can *all)
{
    for (uint32_t i = 0; i < fm_comm_size(c); i++)
        for (uint32_t j = 0; j < i; j++)
            if (fm_comm_node(c, i) == fm_comm_node(c, j) && all[i].card == all[j].card)
                return false;
    return true;
}

fm_status fm_comm_attach_device(fm_comm *c, fm_backend *be)
{
    const fm_module *m = NULL;
    fmc_nccl_card own = {.table = NULL};
    can mine = {.nccl = 0}, all[FM_COMM_MAX_RANKS];
    fm_ignore(fm_comm_attach(c, be, NULL, false), "without a wire of its own it cannot fail");
    if (strcmp(be->name, "cuda") == 0 && fm_module_cuda(&m) == FM_OK && m->nccl &&
        m->nccl(be, &own) == FM_OK)
        mine = (can){.nccl = 1, .direct = own.direct, .card = own.card};
    fm_error_clear(); /* what is missing is no failure: the host's wire is there */
    fm_status rc = fm_comm_collect(c, all, &mine, sizeof(mine));
    bool every = rc == FM_OK && cards_apart(c, all), near = true;
    for (uint32_t i = 0; rc == FM_OK && i < fm_comm_size(c); i++) {
        every = every && all[i].nccl;
        near = near && all[i].direct;
    }
    if (!every)
        return rc;
    fm_wire *wire = NULL;
    rc = fm_wire_nccl(&wire, c, &own);
    return rc == FM_OK ? fm_comm_meet(c, fm_comm_attach(c, be, wire, near), 0) : rc;
}

void fm_ledger_enter(fm_ledger *l, uint32_t rank, const fm_move *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t peer = list[i].peer;
        bool send = list[i].send;
        uint64_t from = send ? rank : peer, to = send ? peer : rank;
        uint64_t number = (send ? l->sent : l->due)[peer]++;
        uint64_t word = fm_rng_u64(from << 32 | to, number, list[i].bytes);
        l->unmet += send ? word : 0 - word;
    }
}
