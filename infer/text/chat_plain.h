/* chat_plain.h - messages whose content is no text, for templates that take texts alone.
 *
 * OpenAI's clients send the content of a message as null beside calls of tools, and as a list of
 * parts. transformers hands both to the template as they are, and many templates add the content to
 * a text; vLLM hands over the empty text, and the parts' texts with line ends between them, where
 * it finds that the template does not look into them. Here a rendering of the messages as they are
 * is judged by its text, and where it will not do that of the plain ones takes its place. */
#ifndef FM_INFER_CHAT_PLAIN_H
#define FM_INFER_CHAT_PLAIN_H

#include "store/base/buf.h"
#include "store/base/text/json.h"

FM_BEGIN_DECLS

enum {
    FMI_CHAT_JOIN = 1,  /* contents of parts that are all texts become one text */
    FMI_CHAT_BLANK = 2, /* a content that is null or missing beside tool_calls becomes "" */
};
/* Which of them would change a message. */
int fmi_chat_unplain(const fm_json *messages);
/* The messages with those changes; the caller frees. */
FM_CHECKED fm_status fmi_chat_plain(fm_json **out, const fm_json *messages, int changes);
/* given, a rendering of the messages as they are, shows the texts of all parts, and no value as
 * Python writes it (None, a part's 'type') that plain (NULL: no text) does not show as often. */
bool fmi_chat_shows_all(const fm_buf *given, const fm_buf *plain, const fm_json *messages);

FM_END_DECLS
#endif
