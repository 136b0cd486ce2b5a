/* wire_device.c - chooses the wire for a device's buffers: its module's NCCL, or the host's. */
#include "infer/comm/comm_core.h"

#include <string.h>

#include "infer/device/module.h"

/* What a rank offers; NCCL is used where every rank has it. */
typedef struct can {
    uint32_t nccl, card;
} can;

/* Whether no two ranks of a node share a GPU, which NCCL's communicators do not allow. */
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
    fm_ignore(fm_comm_attach(c, be, NULL), "without a wire of its own it cannot fail");
    if (strcmp(be->name, "cuda") == 0 && fm_module_cuda(&m) == FM_OK && m->nccl &&
        m->nccl(be, &own) == FM_OK)
        mine = (can){.nccl = 1, .card = own.card};
    fm_error_clear(); /* what is missing is no failure: the host's wire is there */
    fm_status rc = fm_comm_collect(c, all, &mine, sizeof(mine));
    bool every = rc == FM_OK && cards_apart(c, all);
    for (uint32_t i = 0; rc == FM_OK && i < fm_comm_size(c); i++)
        every = every && all[i].nccl;
    if (!every)
        return rc;
    fm_wire *wire = NULL;
    FM_TRY(fm_wire_nccl(&wire, c, &own));

    rc = fm_comm_attach(c, be, wire);
    c->attach_anew = fm_comm_attach_device;
    return fm_comm_meet(c, rc, 0);
}
