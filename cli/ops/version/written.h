/* written.h - a GGUF that was written of a version, opened again as what it stands for. */
#ifndef FM_OPS_WRITTEN_H
#define FM_OPS_WRITTEN_H

#include "cli/ops/ops.h"
#include "store/source.h"

/* A model's file is its own tree; LoRAs are laid on the version without its adapters. */
typedef struct fmo_written {
    fm_source **source; /* the files, in the order of the adapters */
    size_t count, cap;
    fm_tree *base, *laid; /* the version without adapters; with the files' (NULL: a model) */
    fm_provider store;
} fmo_written;

/* path: a GGUF, a GGUF LoRA, or a folder of these, named as fm_export names them. FM_EREFUSED: it
 * cannot be read as what it was written from. */
fm_status fmo_written_open(fmo_written *out, fm_ops *c, const fm_tree *tree, const char *path);
void fmo_written_close(fmo_written *w);
const fm_tree *fmo_written_tree(const fmo_written *w);
fm_provider fmo_written_provider(fmo_written *w); /* valid until the close */

#endif
