/* chat.h - chat templates: messages to the text that a model was trained on.
 *
 * A template is the Jinja2 source that a Hugging Face folder carries (chat_template.jinja, or the
 * field in tokenizer_config.json). It is an untrusted program: it sees only the values given here,
 * and every construct that is not implemented is an error with its line, reported at open wherever
 * that is possible. A rendering has bounds on work, memory, output bytes and depth.
 *
 * Work counts what is executed: nodes evaluated, values visited and compared, bytes copied,
 * searched, mapped and printed. Each has a price in units of about a nanosecond (jinja.h), so the
 * bound limits time, to about a second of a CPU, whatever the template does. The bound does not
 * grow with the messages: real templates need some hundredths of it for 2,000 messages with 1 MB of
 * text.
 *
 * The rendered text has a bound of its own, since it is tokenized next, at 0.1 to 0.3 us a byte:
 * FM_CHAT_OUTPUT_ALWAYS and FM_CHAT_OUTPUT_FACTOR times the memory of the values given. */
#ifndef FM_INFER_CHAT_H
#define FM_INFER_CHAT_H

#include "infer/tokenizer.h"

FM_BEGIN_DECLS

#define FM_CHAT_SOURCE_MAX ((size_t)1 << 20) /* bytes of a template */
#define FM_CHAT_OUTPUT_MAX ((size_t)64 << 20) /* bytes of a text, also of an intermediate one */
#define FM_CHAT_OUTPUT_ALWAYS ((size_t)4 << 20)
#define FM_CHAT_OUTPUT_FACTOR 4
#define FM_CHAT_WORK_MAX UINT64_C(1000000000) /* units of work in one rendering */

typedef struct fm_chat_template fm_chat_template; /* immutable once open: share between threads */

/* source is copied. FM_EINVAL: "<what>: line N: ..." (syntax); FM_EUNSUPPORTED: a construct, filter
 * or test that is not implemented. */
FM_CHECKED fm_status fm_chat_template_open(fm_chat_template **out, fm_span source,
                                           const char *what);
void fm_chat_template_close(fm_chat_template *t); /* NULL is a no-op */

/* Watches the renderings of a thread. */
typedef struct fm_chat_watch {
    /* Called every few milliseconds of a rendering; true: FM_ECANCELLED. NULL: never called. */
    bool (*stop)(void *ctx);
    void *ctx;
    uint64_t work_max; /* less than FM_CHAT_WORK_MAX; 0: FM_CHAT_WORK_MAX */
    uint64_t work;     /* units that the last rendering took */
} fm_chat_watch;
/* From now on w (NULL: none) watches what this thread renders; borrowed until the next call.
 * Returns the watch before it. */
fm_chat_watch *fm_chat_watch_set(fm_chat_watch *w);

/* Append the rendered text. messages: array of objects, which the template sees as they are; where
 * it cannot work with a content that is null beside tool_calls or a list of texts, or shows it as
 * Python would write it, it sees "", or the texts with line ends between them, as with vLLM.
 * tools_or_null: array, visible as `tools` (NULL: none); extra_or_null: object whose fields become
 * variables (bos_token, eos_token, enable_thinking, ...). Its field "strftime_now" (unix seconds,
 * UTC) gives the function strftime_now its time; without it that function is not defined, so that a
 * rendering never depends on the clock. On failure *out is as before: FM_EINVAL with the template's
 * own raise_exception text or the line of the error, FM_ELIMIT, FM_ECANCELLED (fm_chat_watch). */
FM_CHECKED fm_status fm_chat_render(fm_buf *out, const fm_chat_template *t, const fm_json *messages,
                                    const fm_json *tools_or_null, bool add_generation_prompt,
                                    const fm_json *extra_or_null);

/* {"bos_token": ..., "eos_token": ..., "pad_token": ..., "unk_token": ...}: those that t names, as
 * Hugging Face passes them to templates. The caller frees. */
FM_CHECKED fm_status fm_chat_extra_new(fm_json **out, const fm_tokenizer *t);

FM_END_DECLS
#endif
