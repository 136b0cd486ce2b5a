/* import.h - a foreign model becomes a version: a folder of Hugging Face or PEFT, a GGUF, a file of
 * PyTorch (store/source.h lists them). */
#ifndef FM_OPS_IMPORT_H
#define FM_OPS_IMPORT_H

#include "cli/ops/land.h"

FM_BEGIN_DECLS

/* All texts are borrowed. */
typedef struct fm_import_opts {
    const char *path;    /* of the file or folder */
    const char *name;    /* the branch to make */
    const char *parent;  /* REV that it was adapted from; NULL: none. An adapter needs one */
    const char *kind;    /* of the edge; NULL: what the source and the parent say */
    const char *message; /* of the commit; NULL: made of the path */
    fm_words suites;     /* files, hung on it */
    bool no_gate;        /* land without running the suites */
} fm_import_opts;

typedef struct fm_import_result {
    fm_oid oid;
    uint64_t file_bytes; /* that were read */
    fm_txn_stats stats;
} fm_import_result;

/* Leases, hashes, stores, commits, runs the gates, makes the branch. What the source has and a version
 * cannot hold is named in notes. FM_EREFUSED: a gate failed, the candidate is kept under
 * refs/fmstore/rejected/. FM_ECORRUPT: the file is damaged. *out is filled in after FM_OK and
 * FM_EREFUSED. */
fm_status fm_ops_import(fm_ops *c, const fm_import_opts *opts, fm_import_result *out);

FM_END_DECLS
#endif
