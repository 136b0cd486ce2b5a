/* import.h - makes a version of a foreign model: a folder of Hugging Face or PEFT, a GGUF, a file
 * of PyTorch (store/source.h lists the forms), of this machine or of a Hub (remote/hub.h). */
#ifndef FM_OPS_IMPORT_H
#define FM_OPS_IMPORT_H

#include "cli/ops/land.h"

FM_BEGIN_DECLS

/* All texts are borrowed. */
typedef struct fm_import_opts {
    const char *path;    /* of the file or folder; "hf:org/name@rev/file", "https://host/x.gguf" */
    const char *name;    /* the branch to make */
    const char *parent;  /* REV that it was adapted from; NULL: none. An adapter needs one */
    const char *kind;    /* of the edge; NULL: by the source and the parent */
    const char *message; /* of the commit; NULL: made from the path */
    fm_words suites;     /* suite files to add to the version */
    bool no_gate;        /* land without running the suites */
} fm_import_opts;

/* What a full model has of the parent that was named. All zeros: none was, or it is an adapter. */
typedef struct fm_import_kin {
    size_t tensors;       /* of the model */
    size_t fit;           /* that have name and shape of one of the parent's */
    size_t equal;         /* that are one of the parent's, bit for bit, whatever its name */
    size_t looked, alike; /* matrices whose values were compared; that are like the parent's */
    bool doubted;         /* it does not look like a child of that parent, and a note said so */
} fm_import_kin;

typedef struct fm_import_result {
    fm_oid oid;
    uint64_t file_bytes; /* bytes of the files that were read */
    fm_txn_stats stats;
    fm_import_kin kin;
} fm_import_result;

/* Takes a lease, hashes, stores, commits, runs the gates, makes the branch. Notes name the parts of
 * the source that a version cannot hold, and a declared parent that the model does not look like.
 * FM_EREFUSED: a gate failed, the candidate is kept under refs/fmstore/rejected/. FM_ECORRUPT: the
 * file is damaged. FM_EBASE: no tensor fits the parent. *out is filled in after FM_OK and
 * FM_EREFUSED. */
fm_status fm_ops_import(fm_ops *c, const fm_import_opts *opts, fm_import_result *out);

FM_END_DECLS
#endif
