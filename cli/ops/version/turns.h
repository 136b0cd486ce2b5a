/* turns.h - a chat template as a row of turns: the texts before, between and after the messages. */
#ifndef FM_OPS_TURNS_H
#define FM_OPS_TURNS_H

#include "cli/ops/ops.h"

/* A conversation is first, user, question, assistant, answer, user, ..., user, prompt; with a
 * system message it begins with system, its text, after_system in the place of first. */
typedef struct fmo_turns {
    char *first;                 /* before the first user's message */
    char *question;              /* after a user's message: its answer follows */
    char *prompt;                /* after the last message, a user's: the model is to answer */
    char *answer;                /* after an answer: a user's message follows */
    char *system, *after_system; /* around a system message; NULL: the template takes none */
    char *default_system;        /* what the template puts where there is none; NULL: nothing */
} fmo_turns;

/* Renders conversations and compares them with the row. FM_EUNSUPPORTED: the template is no such
 * row, or it cannot be rendered; the text says why. extra: fm_chat_render's. */
fm_status fmo_turns_of(fmo_turns *out, const fm_chat_template *t, const fm_json *extra);
void fmo_turns_release(fmo_turns *t);

/* A version's chat template, without its weights. *out NULL: it has none. */
fm_status fmo_chat_open(fm_ops *c, const fm_tree *tree, const fm_tokenizer *t,
                        fm_chat_template **out);

#endif
