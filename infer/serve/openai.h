/* openai.h - a client's request as plain values: the body of POST /v1/completions, of
 * /v1/chat/completions and of /v1/embeddings, read and checked. A pure function over JSON: it knows
 * no sockets, no models and no clock.
 *
 * A field that would change the answer and is not implemented is refused by name, and so is an
 * unknown field: an answer that silently ignored half of the request is worse than a refusal. null
 * stands for an absent field, as clients send it. */
#ifndef FM_INFER_SERVE_OPENAI_H
#define FM_INFER_SERVE_OPENAI_H

#include "infer/grammar.h"
#include "infer/sampler.h"
#include "store/base/text/json.h"

FM_BEGIN_DECLS

#define FMI_ASK_MAX_PROMPTS 64u
#define FMI_ASK_MAX_INPUTS 2048u /* texts of one request for embeddings */
#define FMI_ASK_MAX_CHOICES 128u /* prompts times n */
#define FMI_ASK_MAX_TOOLS 256u
#define FMI_ASK_MAX_STOPS 16u
#define FMI_ASK_MAX_STOP_BYTES 1024u
#define FMI_ASK_MAX_TOP 20u /* alternatives per token */
#define FMI_ASK_MAX_MODEL_BYTES 512u
#define FMI_ASK_DEFAULT_TOKENS 256u

typedef struct fmi_prompt {
    fm_span text; /* into body; data NULL where ids are given */
    int32_t *ids; /* [count] */
    size_t count;
} fmi_prompt;

typedef enum fmi_ask_kind { FMI_ASK_TEXT, FMI_ASK_CHAT, FMI_ASK_EMBED } fmi_ask_kind;

typedef struct fmi_ask {
    fmi_ask_kind kind;
    bool chat; /* kind FMI_ASK_CHAT */
    char *model;
    fm_json *body;      /* keeps the texts of prompts alive */
    fm_json *messages;  /* chat: contents are strings or null */
    fmi_prompt *prompt; /* [prompts]; chat: none; embeddings: input */
    size_t prompts;
    uint32_t n, best_of; /* answers per prompt; best_of 0: not given, else equal to n */
    fm_json *tools;      /* chat: tools for the template; NULL: none */
    fm_json *variables;  /* chat: further variables of the template; NULL: none */
    fm_grammar *grammar; /* the form of every answer; NULL: any text */
    uint32_t max_tokens;
    fm_sample_params sampling;
    bool seeded; /* the client gave sampling.seed */
    char *stop[FMI_ASK_MAX_STOPS];
    size_t stops;
    bool stream, include_usage, ignore_eos, logprobs, token_ids;
    uint32_t top_logprobs;
    bool hide_tools; /* tool_choice "none" */
    bool one_call;   /* parallel_tool_calls false */
    bool has_top;    /* chat: top_logprobs was given, which needs logprobs */
    bool base64;     /* embeddings: vectors as base64 of float32, little-endian */
    char param[64];  /* after FM_EINVAL: the field at fault, "" for the whole body */
} fmi_ask;

/* max_tokens_cap: the most that a request may ask for. FM_EINVAL names the field in the text and in
 * out->param. Release after either outcome. */
FM_CHECKED fm_status fmi_ask_parse(fmi_ask *out, const fm_json *body, fmi_ask_kind kind,
                                   uint32_t max_tokens_cap);
/* Frees body and messages, once their texts are encoded. */
void fmi_ask_drop_texts(fmi_ask *a);
void fmi_ask_release(fmi_ask *a);

FM_END_DECLS
#endif
