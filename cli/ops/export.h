/* export.h - what goes beside a GGUF that was written of a version: a Modelfile for Ollama. */
#ifndef FM_OPS_EXPORT_H
#define FM_OPS_EXPORT_H

#include "cli/ops/ops.h"

FM_BEGIN_DECLS

/* Appends an Ollama Modelfile of a version that was written as a GGUF. All texts are borrowed.
 *
 *   FROM, ADAPTER     the files
 *   TEMPLATE          in Go's syntax, where the chat template is the same text before and after each
 *                     message: then both give the same prompts (white space at the ends of a
 *                     message aside). It is found by rendering conversations, not by a name. Else it
 *                     is left out with a comment, and Ollama looks the GGUF's own up among those it
 *                     knows
 *   SYSTEM            the template's default, which it puts where a conversation has none
 *   PARAMETER         stop: the texts of the tokens that end an answer; num_ctx: the positions
 *
 * What Ollama's parser would not give back as it is (three quotes, characters that it drops) is left
 * out with a comment. FM_EUNSUPPORTED: a name of a file is such a text. */
typedef struct fm_modelfile_opts {
    const fm_tree *tree;
    const char *what;    /* the version's name, for comments and errors */
    const char *model;   /* name of the GGUF, in the Modelfile's folder */
    const char *adapter; /* likewise of a GGUF LoRA; NULL: none */
} fm_modelfile_opts;
fm_status fm_ops_modelfile(fm_ops *c, const fm_modelfile_opts *opts, fm_buf *out);

FM_END_DECLS
#endif
