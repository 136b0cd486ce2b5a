/* ledger.c - counts the messages of a device's wire, to see whether every send has its receive, and
 * lists the exchanges of a recording. */
#include "infer/comm/wire.h"

#include "store/base/mem.h"
#include "store/base/math/rng.h"

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

/* Folds the sizes of all messages of one peer and direction, in order, into one number. */
static fm_status note(fm_script *s, const fm_move *one)
{
    uint32_t i = 0;
    while (i < s->n && (s->list[i].peer != one->peer || s->list[i].send != one->send))
        i++;
    FM_TRY(i < s->n ? FM_OK : fm_grow(&s->list, &s->cap, s->n + 1, sizeof(*s->list)));

    if (i == s->n)
        s->list[s->n++] = (fm_move){.peer = one->peer, .send = one->send};
    s->list[i].bytes = (size_t)fm_rng_u64(s->list[i].bytes, one->bytes, 0);
    return FM_OK;
}

fm_status fm_script_note(fm_script *s, const fm_move *list, uint32_t n)
{
    s->calls++;
    for (uint32_t i = 0; i < n; i++) {
        *(list[i].send ? &s->sent_bytes : &s->received_bytes) += list[i].bytes;
        FM_TRY(note(s, &list[i]));
    }
    return FM_OK;
}

void fm_script_release(fm_script *s)
{
    fm_free(s->list);
    *s = (fm_script){0};
}
