/* shard.h - one model over the ranks of a comm: what each holds, and how ranks keep in step.
 *
 * A rank holds a shard of every model: its query heads with their keys and values, its columns of
 * the feed-forward branch (of each expert, too), its rows of the vocabulary; norms, routers,
 * positions and classification heads whole. So its model is a smaller one of the same kind:
 * fm_model.arch describes the whole, fmi_model_priv.local the shard, which sets the sizes of pages
 * and activations. The products of o and down give parts of a sum over k: they are added over
 * ranks (comm.h fixes the order), biases are rank 0's. Low-rank terms follow their module: B is cut
 * by its outputs or A by its inputs, so they cost no message of their own. Where a rank has fewer
 * than one head of keys and values, neighbours hold the same one.
 *
 * Since k is cut where the ranks meet, the kernel class names their number: "exact-f32-1/2 ranks".
 *
 * Rank 0 leads: it logs the calls to its engine (models, sequences, steps) and sends the log with
 * the next step. The other ranks repeat the calls and so have the same pages, tables and caches;
 * only rank 0 gets logits. All meet after a step (fm_comm_meet): a rank that failed alone fails the
 * step on all, and every rank forgets idle blocks, since the caches may differ. So a step costs two
 * small messages; over a device's wire and over MPI three, since there ranks compare their plans
 * before data moves (sockets see a message of another size), and a step that is recorded one more.
 * Where plans differ the step fails with a message that says so, and the ranks go on. */
#ifndef FM_INFER_SHARD_H
#define FM_INFER_SHARD_H

#include "infer/comm.h"
#include "infer/model/model_bind.h"

FM_BEGIN_DECLS

#define FMI_CUTS 3u

/* The outputs (rows of W) or inputs (columns) of a linear that a rank holds. parts 0: all. */
typedef struct fmi_cut {
    bool of_inputs;
    uint32_t parts;
    uint64_t begin[FMI_CUTS], count[FMI_CUTS];
    uint64_t zeros; /* outputs of 0 appended to them */
    bool elsewhere; /* another stage has the linear */
} fmi_cut;

/* A cut along one dimension of a tensor as it is stored. parts 0: all of it. */
typedef struct fmi_slice {
    uint32_t axis, parts;
    uint64_t begin[FMI_CUTS], count[FMI_CUTS];
    uint64_t zeros;
    bool elsewhere; /* another stage has it: only its id is held here (FMI_ELSEWHERE) */
} fmi_slice;
static inline fmi_form fmi_form_here(fmi_form form, const fmi_slice *s)
{
    return s->elsewhere ? form | FMI_ELSEWHERE : form;
}

/* The shard's sizes. FM_EUNSUPPORTED names the size that cannot be split into so many parts. */
FM_CHECKED fm_status fmi_shard_arch(fm_arch *local, const fm_arch *whole, uint32_t ranks,
                                    const char *what);
/* The cut of the module whose weight or bias stands at `place`. */
fmi_cut fmi_cut_of(const fm_arch *whole, fm_place place, uint32_t rank, uint32_t ranks);
fmi_cut fmi_cut_of_linear(const fm_model *m, const fm_linear *lin);
uint64_t fmi_cut_total(const fmi_cut *c); /* zeros included */
/* Whether lin belongs to the layer. */
bool fmi_layer_has(const fm_layer *l, uint32_t experts, const fm_linear *lin);
/* Inputs or outputs of a linear before the cut. */
uint32_t fmi_whole_in(const fm_model *m, const fm_linear *lin);
uint32_t fmi_whole_out(const fm_model *m, const fm_linear *lin);
/* The slice of a tensor along `axis` that belongs to inputs (outputs) with this cut. */
fmi_slice fmi_slice_of(const fmi_cut *c, bool inputs, uint32_t axis);
fmi_slice fmi_slice_of_param(const fm_model *m, const fm_param *p);
/* False where another rank has p: the bias of a module whose inputs are cut is rank 0's. */
bool fmi_param_is_here(const fm_model *m, const fm_param *p);
fm_shape fmi_slice_shape(const fm_shape *s, const fmi_slice *c);

/* As fmi_weights_take, of a slice of e's tensor: an entry of the cache with an id of its own. */
FM_CHECKED fm_status fmi_take_slice(fmi_weights *c, fmi_cached **out, const fm_entry *e,
                                    fmi_form form, const fm_provider *p, const fmi_slice *slice);
/* The id of that entry. */
FM_CHECKED fm_status fmi_slice_id(fm_digest *out, const fm_entry *e, const fmi_slice *slice);
/* The part of n host values by outputs that c leaves; the caller frees it by fm_free. */
FM_CHECKED fm_status fmi_cut_floats(float **out, const float *whole, const fmi_cut *c, uint64_t n);
/* Cuts rows [len, layers, 2, kv heads * head size] of all heads to the shard's heads, in place. */
void fmi_cut_virtual(const fm_model *m, float *rows, uint32_t len);

/* Where a parameter stands: in layer l >= 0, before all layers, or behind them. */
enum { FMI_BEFORE_LAYERS = -1, FMI_BEHIND_LAYERS = -2 };
int32_t fmi_pipe_place(const fm_param *p);
/* Whether this rank's stage has the parameters at a place; likewise a linear layer. */
bool fmi_pipe_holds(const fm_model *m, int32_t place);
bool fmi_pipe_holds_linear(const fm_model *m, const fm_linear *lin);

/* The row of this rank's embedding that stands for a token: zeros where another rank has it. */
int32_t fmi_token_here(const fm_model *m, int32_t token);

FM_END_DECLS
#endif
