/* seq_state.h - the states of recurrent layers, beside pages of keys and values.
 *
 * What it is. Of everything before a row a recurrent layer reads a state of fixed size, float32
 * (fm_recurrence_floats); the keys and values of attention grow with the text. A *mark* is the
 * state of all recurrent layers of a model behind a number of tokens: one page of geom->states for
 * each layer. A text begins without a mark, which means zeros.
 *
 * A page is written once. A step reads the mark at the sequence's length and writes other marks:
 * one behind its last row, and those at ends of blocks that the cache will keep. So there is
 * nothing to undo: after a failed step the marks beyond the length go back (fmi_seq_trim), and the
 * one before the step is still there. It stays until the step is confirmed, so a step that was
 * queued behind it can be taken back as well. A row's state is computed from the state before the
 * row alone, in one order, so it does not matter how a text was cut into steps.
 *
 * Who holds them. A sequence holds its own marks: one between steps, up to three while steps are
 * queued. The prefix cache keeps marks at ends of blocks under the node of the block and the
 * layer's kv_key: every geom->stride blocks, and behind the last whole block of each piece of a
 * prompt. Each is taken from the cache by any number of sequences (two answers to one prompt, two
 * models with the same lower layers), since nobody writes to it. Kept marks leave as kept pages do,
 * and take at most half of the budget (kvcache.h).
 *
 * Rows of such a model go through all layers or none: whole blocks are taken from the cache up to
 * the last one that has a mark (fmi_seq_adopt), and what lies behind it is computed. Where a
 * sequence is rewound to a length without a mark, the tokens behind the nearest one before are
 * computed again. */
#ifndef FM_INFER_SEQ_STATE_H
#define FM_INFER_SEQ_STATE_H

#include "infer/engine/engine.h"

FM_BEGIN_DECLS

static inline bool fmi_has_state(const fm_seq *s)
{
    return fmi_priv(s->model)->geom->recurs > 0;
}

/* The pages of the mark behind the first `at` tokens, [recurrent layers]; NULL: there is none. */
const int32_t *fmi_mark_at(const fm_seq *s, uint32_t at);
/* The length of the last mark that is not behind `at`; 0: zeros. */
uint32_t fmi_mark_before(const fm_seq *s, uint32_t at);
/* Takes the marks that rows up to len will write. Without memory for a mark that only the cache
 * would keep it goes on. */
FM_CHECKED fm_status fmi_marks_reserve(fm_seq *s, uint32_t len);
/* Gives back the marks outside of [first, last]. */
void fmi_marks_limit(fm_seq *s, uint32_t first, uint32_t last);
/* Puts the mark behind the last complete block, if there is one, into the cache. */
void fmi_marks_put(fm_seq *s);
/* The length up to which whole blocks can be taken from the cache: there is a mark behind them. */
uint32_t fmi_marks_reach(fm_seq *s);
/* Takes the mark there. */
void fmi_marks_adopt(fm_seq *s);
/* Computes the known tokens from the sequence's length up to len again. */
FM_CHECKED fm_status fmi_marks_replay(fm_seq *s, uint32_t len);
void fmi_marks_free(fm_seq *s);

FM_END_DECLS
#endif
