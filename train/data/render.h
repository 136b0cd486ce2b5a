/* render.h - turns one training record into ids and labels. Inner header of the data set. */
#ifndef FM_TRAIN_RENDER_H
#define FM_TRAIN_RENDER_H

#include "train/net/internal.h"

FM_BEGIN_DECLS

#define FMT_PREVIEW_BYTES 120u

typedef enum fmt_kind {
    FMT_KIND_NONE,
    FMT_KIND_MESSAGES,
    FMT_KIND_SHAREGPT,
    FMT_KIND_ALPACA,
    FMT_KIND_COMPLETION, /* prompt and completion */
    FMT_KIND_TEXT,
    FMT_KIND_TOKENS, /* tokenized already */
    FMT_KIND_PREFERENCE,
    FMT_KIND_PAIR, /* contrastive */
    FMT_KIND_CLASS,
    FMT_KIND_BLOCK, /* a block of plain text */
} fmt_kind;
const char *fmt_kind_name(fmt_kind kind); /* "alpaca" */
/* The kind of a record for this objective, by its fields; FMT_KIND_NONE where they fit no kind. */
fmt_kind fmt_kind_of(const fm_json *record, fm_objective objective);

typedef struct fmt_renderer {
    const fm_tokenizer *tok;
    const fm_chat_template *chat; /* NULL: fields are joined by newlines */
    fm_json *extra;               /* variables that templates expect */
    uint32_t max_tokens;
    bool answers_only;
    fm_objective objective;
    const char *what; /* name of the file, for errors */
} fmt_renderer;

typedef struct fmt_render_info {
    fmt_kind kind;
    uint32_t prompt_len; /* tokens in front of the first answer, even if these count; 0: none */
    uint32_t label;      /* classify: number of the label in the data set, in order of appearance */
    bool has_answer;     /* there is an answer, whose end should be learnt */
} fmt_render_info;

/* Fills ids, labels, len, parts, lost and preview of out, which the caller releases
 * (fmt_example_release). Each part is cut after max_tokens. klass stays -1: classes are known only
 * for a whole data set. FM_EINVAL names record and field. */
FM_CHECKED fm_status fmt_render_record(fm_example *out, fmt_render_info *info,
                                       const fmt_renderer *r, const fm_json *record, size_t number);
/* Fills out from a block of plain text that is already tokenized: every token counts. */
FM_CHECKED fm_status fmt_render_block(fm_example *out, fmt_render_info *info, const fmt_renderer *r,
                                      const int32_t *ids, size_t n, size_t number);
void fmt_example_release(fm_example *e);

/* ---- render_pieces.c: an example under construction ---- */
typedef struct fmt_pieces {
    const fmt_renderer *r;
    fm_ids ids;
    fm_ids labels;
    uint32_t parts;
    size_t part_at[FM_EXAMPLE_PARTS]; /* where each part begins */
    size_t part_lost[FM_EXAMPLE_PARTS];
    bool answered;         /* prompt_len is known */
    size_t prompt_len;     /* of the first part */
    fm_buf prompt, answer; /* the beginnings of both, for the preview */
    size_t number;
    fmt_kind kind;
} fmt_pieces;

FM_CHECKED fm_status fmt_bad_field(const fmt_pieces *p, const char *field, const char *must);
/* Begins the next part. */
void fmt_begin_part(fmt_pieces *p);
void fmt_end_part(fmt_pieces *p); /* cuts the part at max_tokens; called after each part */
FM_CHECKED fm_status fmt_add_text(fmt_pieces *p, fm_span text, bool counts);
FM_CHECKED fm_status fmt_add_id(fmt_pieces *p, int32_t id, bool counts);
FM_CHECKED fm_status fmt_add_bos(fmt_pieces *p);
/* Adds a text as inference encodes a whole text, with the tokens that the tokenizer puts around it;
 * no token counts. The text is cut inside to max_tokens, so that the tokens behind it stay. second
 * (data NULL: none): a text that belongs to it and follows the first one's end token, or stands on
 * a new line if the tokenizer has no end token. */
FM_CHECKED fm_status fmt_add_whole(fmt_pieces *p, fm_span text, fm_span second);
/* Adds an id that counts or not as the caller says, even against answers_only. */
FM_CHECKED fm_status fmt_add_labelled(fmt_pieces *p, int32_t id, bool counts);
void fmt_note(fm_buf *b, fm_span text);
/* Adds a conversation; the assistant's turns from message `first` on count. tools may be NULL.
 * field: name of the field, for errors. */
FM_CHECKED fm_status fmt_add_conversation(fmt_pieces *p, const fm_json *messages, size_t first,
                                          const fm_json *tools, const char *field);
FM_CHECKED fm_status fmt_push_message(fm_json *messages, const char *role, fm_span text);
/* Adds one record of p->kind. */
FM_CHECKED fm_status fmt_add_record(fmt_pieces *p, const fm_json *record);

FM_END_DECLS
#endif
