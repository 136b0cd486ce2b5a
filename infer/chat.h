/* chat.h - chat templates: messages to the text that a model was trained on.
 *
 * A template is the Jinja2 source that a Hugging Face folder carries (chat_template.jinja, or the
 * field in tokenizer_config.json). It is a program from a stranger: it sees only the values given
 * here, and every construct that is not implemented is an error with its line, at open wherever
 * that can be known. What a rendering may do is bounded: work, memory, output bytes and depth.
 *
 * Work is what is done, not what is written: nodes evaluated, values visited and compared, bytes
 * copied, searched, mapped and printed, each at a price (jinja.h) of about a nanosecond a unit. So
 * the bound is one on time, about a second of a CPU, whatever the template does. It does not grow
 * with the messages: 2,000 of them with 1 MB of text take real templates some hundredths of it.
 *
 * The rendered text has a bound of its own, since it is tokenized next, at 0.1 to 0.3 us a byte:
 * FM_CHAT_OUTPUT_ALWAYS and FM_CHAT_OUTPUT_FACTOR times the memory of the values that were given. */
#ifndef FM_INFER_CHAT_H
#define FM_INFER_CHAT_H

#include "infer/tokenizer.h"

FM_BEGIN_DECLS

#define FM_CHAT_SOURCE_MAX ((size_t)1 << 20) /* bytes of a template */
#define FM_CHAT_OUTPUT_MAX ((size_t)64 << 20) /* bytes of a text, in between too */
#define FM_CHAT_OUTPUT_ALWAYS ((size_t)4 << 20)
#define FM_CHAT_OUTPUT_FACTOR 4
#define FM_CHAT_WORK_MAX UINT64_C(1000000000) /* units of work in one rendering */

typedef struct fm_chat_template fm_chat_template; /* immutable once open: share between threads */

/* source is copied. FM_EINVAL: "<what>: line N: ..." (syntax); FM_EUNSUPPORTED: a construct, filter
 * or test that is not implemented. */
FM_CHECKED fm_status fm_chat_template_open(fm_chat_template **out, fm_span source,
                                           const char *what);
void fm_chat_template_close(fm_chat_template *t); /* NULL is a no-op */

/* Who watches the renderings of a thread. */
typedef struct fm_chat_watch {
    bool (*stop)(void *ctx); /* asked every few milliseconds of a rendering; true: FM_ECANCELLED.
                              * NULL: nobody is asked */
    void *ctx;
    uint64_t work_max; /* less than FM_CHAT_WORK_MAX; 0: that */
    uint64_t work;     /* what the last rendering came to */
} fm_chat_watch;
/* From now on w (NULL: nobody) watches what this thread renders; borrowed until the next call.
 * Returns who did so before. */
fm_chat_watch *fm_chat_watch_set(fm_chat_watch *w);

/* Append the rendered text. messages: array of objects; tools_or_null: array, visible as `tools`
 * (NULL: none); extra_or_null: object whose fields become variables (bos_token, eos_token,
 * enable_thinking, ...). Its field "strftime_now" (unix seconds, UTC) gives the function
 * strftime_now its time; without it that function is not defined, so that a rendering never
 * depends on the clock. On failure *out is as before: FM_EINVAL with the template's own
 * raise_exception text or the line of the error, FM_ELIMIT, FM_ECANCELLED (fm_chat_watch). */
FM_CHECKED fm_status fm_chat_render(fm_buf *out, const fm_chat_template *t, const fm_json *messages,
                                    const fm_json *tools_or_null, bool add_generation_prompt,
                                    const fm_json *extra_or_null);

/* {"bos_token": ..., "eos_token": ..., "pad_token": ..., "unk_token": ...}: those that t names, as
 * Hugging Face passes them to templates. The caller frees. */
FM_CHECKED fm_status fm_chat_extra_new(fm_json **out, const fm_tokenizer *t);

FM_END_DECLS
#endif
