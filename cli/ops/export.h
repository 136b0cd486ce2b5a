/* export.h - what goes with a GGUF that was written of a version: a Modelfile for Ollama, and the
 * proof that the file answers as the version does. */
#ifndef FM_OPS_EXPORT_H
#define FM_OPS_EXPORT_H

#include "cli/ops/ops.h"

FM_BEGIN_DECLS

/* Appends an Ollama Modelfile of a version that was written as a GGUF. All texts are borrowed.
 *
 *   FROM, ADAPTER     the files
 *   TEMPLATE          in Go's syntax, where the chat template is the same text before and after
 *                     each message: then both give the same prompts (white space at the ends of a
 *                     message aside). It is found by rendering conversations, not by a name. Else
 *                     it is left out with a comment, and Ollama looks the GGUF's own up among
 *                     those it knows
 *   SYSTEM            the template's default, which it puts where a conversation has none
 *   PARAMETER         stop: the texts of the tokens that end an answer; num_ctx: the positions
 *
 * What Ollama's parser would not give back as it is (three quotes, characters that it drops) is
 * left out with a comment. FM_EUNSUPPORTED: a name of a file is such a text. */
typedef struct fm_modelfile_opts {
    const fm_tree *tree;
    const char *what;    /* the version's name, for comments and errors */
    const char *model;   /* name of the GGUF, in the Modelfile's folder */
    const char *adapter; /* likewise of a GGUF LoRA; NULL: none */
} fm_modelfile_opts;
fm_status fm_ops_modelfile(fm_ops *c, const fm_modelfile_opts *opts, fm_buf *out);

/* The figures of fm_ops_verify. A position is one token of a text; what the model says of the next
 * token is compared there, the version's own choice first: KL is that of the version to the other,
 * in nats. `rounding` is the version with the file's types and nothing else of it
 * (fm_rounded_open). */
typedef struct fm_verify_figures {
    double kl, kl_most; /* the mean, and the largest of a position */
    size_t best;        /* positions where the most likely token is the version's */
    size_t answers;     /* greedy answers that are the version's, token for token */
} fm_verify_figures;

typedef struct fm_verify_report {
    size_t texts, positions;
    fm_verify_figures file, rounding;
    double kl_limit, kl_most_limit; /* what kl and kl_most of the file must not exceed */
    bool compared;                  /* the figures are there */
} fm_verify_report;

/* Opens a GGUF, or the GGUF LoRAs, that were written of the version (path: the file, or
 * fm_export's folder of several LoRAs, which are laid on the version's base), as import does, and
 * compares both: tokens, chat template, stop tokens, and what both say after a handful of built-in
 * texts and answers. The file passes where
 *
 *   - tokens and rendered conversations are equal, and each token that ends the version's answers
 *     ends the file's: by its eos_token_id, or because llama.cpp ends at its text;
 *   - its mean KL is at most 1.25 times that of rounding, plus 1e-7 (the noise of summing in
 *     another order), its largest at most twice that of rounding, plus 1e-5;
 *   - no fewer greedy answers are equal than with rounding, and at no more than 1 in 100 positions
 *     more is another token the most likely.
 *
 * The engine should run in mode exact, and holds one of the three models at a time; nothing is
 * written. FM_EREFUSED: it does not pass; the text has the first thing that differs. *out is filled
 * in as far as the comparison came. */
fm_status fm_ops_verify(fm_ops *c, const fm_tree *tree, const char *what, const char *path,
                        fm_verify_report *out);

FM_END_DECLS
#endif
