/* step_states.c - where the states of a step's rows lie (engine/seq_state.h). */
#include "infer/engine/seq_state.h"
#include "infer/engine/step/step.h"

#define UNPLACED (1u << 31)

/* The rows of the pass, those of a sequence one behind another, sequences as their first rows
 * stand; so the rows of a run stay together. s->member: how many rows of each sequence there are,
 * then where its next one goes. */
static void list_rows(const fmi_step *s, const fm_row *rows, uint32_t row0, uint32_t m,
                      const fmi_geom *g, int32_t *row)
{
    uint32_t *next = s->member, begin = 0;
    for (uint32_t q = 0; q < g->seqs; q++)
        next[q] = UNPLACED;
    for (uint32_t i = 0; i < m; i++)
        next[rows[s->order[row0 + i]].seq->number]++;
    for (uint32_t i = 0; i < m; i++) {
        uint32_t *at = &next[rows[s->order[row0 + i]].seq->number], count = *at - UNPLACED;
        if (*at >= UNPLACED) {
            *at = begin;
            begin += count;
        }
        row[(*at)++] = (int32_t)i;
    }
}

void fmi_fill_states(const fmi_step *s, const fm_row *rows, uint32_t row0, uint32_t m,
                     const fmi_geom *g, int32_t *out)
{
    list_rows(s, rows, row0, m, g, out);
    for (uint32_t k = 0; k < m; k++) {
        uint32_t caller = s->order[row0 + (uint32_t)out[k]];
        const fm_seq *q = rows[caller].seq;
        uint32_t at = s->pos[caller] - q->base;
        bool first = at == q->len;
        const int32_t *from = first && at > 0 ? fmi_mark_at(q, at) : NULL;
        const int32_t *to = fmi_mark_at(q, at + 1);
        fm_assert(from || !first || at == 0);
        for (uint32_t r = 0; r < g->recurs; r++) {
            int32_t *layer = out + m * (1 + 2 * (size_t)r);
            layer[k] = from ? from[r] : first ? FM_STATE_NONE : FM_STATE_ON;
            layer[m + k] = to ? to[r] : FM_STATE_NONE;
        }
    }
}
