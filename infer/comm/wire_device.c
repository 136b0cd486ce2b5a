/* wire_device.c - which wire carries the buffers of a device: its module's own, or the host's;
 * which of its messages meet; what was recorded of them. */
#include "infer/comm/wire.h"

#include <string.h>

#include "infer/device/module.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

/* What a rank can do; all must be able to. */
typedef struct can {
    uint32_t nccl, card;
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
    rc = fm_wire_nccl(&wire, c, &own);
    return rc == FM_OK ? fm_comm_meet(c, fm_comm_attach(c, be, wire), 0) : rc;
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

/* The sizes of all messages of one peer and way, in their order, as one. */
static fm_status note(fm_script *s, const fm_move *one)
{
    uint32_t i = 0;
    while (i < s->n && (s->list[i].peer != one->peer || s->list[i].send != one->send))
        i++;
    fm_status rc = i < s->n ? FM_OK : fm_grow(&s->list, &s->cap, s->n + 1, sizeof(*s->list));
    if (rc != FM_OK)
        return rc;
    if (i == s->n)
        s->list[s->n++] = (fm_move){.peer = one->peer, .send = one->send};
    s->list[i].bytes = (size_t)fm_rng_u64(s->list[i].bytes, one->bytes, 0);
    return FM_OK;
}

fm_status fm_script_note(fm_script *s, const fm_move *list, uint32_t n)
{
    fm_status rc = FM_OK;
    s->calls++;
    for (uint32_t i = 0; i < n && rc == FM_OK; i++) {
        *(list[i].send ? &s->sent_bytes : &s->received_bytes) += list[i].bytes;
        rc = note(s, &list[i]);
    }
    return rc;
}

void fm_script_release(fm_script *s)
{
    fm_free(s->list);
    *s = (fm_script){0};
}
