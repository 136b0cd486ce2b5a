/* request.h - one generation request: its tokens, its text, and its events to the caller. */
#ifndef FM_INFER_REQUEST_H
#define FM_INFER_REQUEST_H

#include "infer/engine/engine.h"

FM_BEGIN_DECLS

#define FMI_MAX_STOPS 16u
#define FMI_MAX_STOP_BYTES 1024u
#define FMI_MAX_TOP_LOGPROBS 100u

typedef struct fmi_request {
    uint64_t id;
    fm_gen_request ask; /* its prompt and stop are not used: token and stop below are copies */
    fm_seq *seq;        /* NULL until started */
    int32_t *token;     /* prompt, then the answer; capacity: room */
    int32_t *source;    /* of an encoder-decoder: what was asked; its prompt is fm_arch.start */
    size_t source_len;
    size_t prompt_len, count, room;
    fm_tok_stream stream;
    fm_buf text; /* complete code points that were not handed out yet */
    char *stop[FMI_MAX_STOPS];
    size_t stops;
    fm_grammar_state *form; /* NULL: any text */
    uint64_t *allowed;      /* [vocab / 64 + 1], with a form */
    fm_logprob *top;        /* [top_logprobs] */
    uint32_t row0, rows;    /* its rows of the running step */
    bool wants;             /* the last of them gives a token */
    int32_t pick;           /* number of its next token in the queued step, -1: it is known */
    uint64_t *seen;         /* device: its tokens, for the penalty; NULL: not needed yet */
    fm_backend *be;         /* the backend of seen */
    bool seen_whole;        /* seen has all its tokens */
    bool cancelled, done;
    bool stopped;    /* by a stop string: no text follows */
    bool charged;    /* its prompt is counted in flow->served */
    uint32_t anew;   /* restarts since its last token, at most ANEW_MOST (scheduler.c) */
    uint32_t cached; /* tokens of the prompt that were not computed: final with its first token */
    struct fmi_flow *flow;
    struct fmi_request *next; /* in the list of waiting requests */
} fmi_request;

FM_CHECKED fm_status fmi_request_new(fmi_request **out, const fm_gen_request *ask, uint64_t id);
void fmi_request_free(fmi_request *r);
/* The tokens that may come next, for the sampler: *out NULL where any text is allowed. */
FM_CHECKED fm_status fmi_request_allowed(fmi_request *r, const uint64_t **out);
/* Takes a sampled token: text, stop strings, eos, limits, the event. May end the request. */
void fmi_request_token(fmi_request *r, int32_t token, float logprob, uint32_t top_count);
/* Sends the last event, once; error is text for "error", else NULL. */
void fmi_request_finish(fmi_request *r, const char *why, const char *error);

FM_END_DECLS
#endif
