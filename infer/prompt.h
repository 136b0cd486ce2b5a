/* prompt.h - what people write to the ids that a model sees; the same for run, suites and
 * server. */
#ifndef FM_INFER_PROMPT_H
#define FM_INFER_PROMPT_H

#include "infer/infer.h"

FM_BEGIN_DECLS

/* Renders messages with the model's own template, encodes them and appends the ids to out. The
 * template writes the special tokens; special tokens inside messages, tools or documents are
 * ordinary text (text/special_escape.h), where Hugging Face would let them through. Without such
 * texts the ids are Hugging Face's. FM_EUNSUPPORTED: the model has no template or tokenizer. */
FM_CHECKED fm_status fm_prompt_chat(fm_ids *out, const fm_model *m, const fm_json *messages,
                                    const fm_json *tools_or_null);
/* The same with further variables of the template (an object; NULL: none), before bos_token and the
 * like. */
FM_CHECKED fm_status fm_prompt_messages(fm_ids *out, const fm_model *m, const fm_json *messages,
                                        const fm_json *tools_or_null,
                                        const fm_json *variables_or_null);
/* One user message. */
FM_CHECKED fm_status fm_prompt_user(fm_ids *out, const fm_model *m, fm_span text);
/* Plain text to continue, with the tokenizer's own special tokens (bos) in front. */
FM_CHECKED fm_status fm_prompt_text(fm_ids *out, const fm_model *m, fm_span text);

FM_END_DECLS
#endif
