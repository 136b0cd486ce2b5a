/* special_escape.h - keeps special tokens in untrusted text from coming through a chat template.
 *
 * A template joins its own special tokens and what people wrote into one text. Where a string of
 * the messages holds the text of a special token (or a beginning or end of one, which its neighbour
 * could complete), a mark that no string holds is put inside it. The marks go through the template
 * and are taken out of its text, and no special token is found across their places. Strings without
 * such text are not touched, so that their ids are those of Hugging Face. */
#ifndef FM_INFER_SPECIAL_ESCAPE_H
#define FM_INFER_SPECIAL_ESCAPE_H

#include "infer/tokenizer.h"

FM_BEGIN_DECLS

typedef struct fmi_special_escape {
    fm_span *special; /* texts of t's special tokens; [specials] */
    size_t specials;
    uint32_t mark; /* a noncharacter, U+FDD0 .. U+FDEF */
    bool marked;   /* some string holds one */
    size_t *at;    /* places of the marks in the text, ascending; [count] */
    size_t count, cap;
} fmi_special_escape;

/* Chooses a mark that is in none of values[0..n) (NULL entries are skipped). Release after either
 * outcome. FM_EINVAL: the values hold every mark there is. */
FM_CHECKED fm_status fmi_special_escape_init(fmi_special_escape *g, const fm_tokenizer *t,
                                             const fm_json *const *values, size_t n);
/* A copy of value with its strings marked; the caller frees it. NULL gives NULL. */
FM_CHECKED fm_status fmi_special_escape_value(fmi_special_escape *g, fm_json **out,
                                              const fm_json *value);
/* Takes the marks out of a rendered text and notes their places in g->at. */
FM_CHECKED fm_status fmi_special_escape_strip(fmi_special_escape *g, fm_buf *text);
void fmi_special_escape_release(fmi_special_escape *g);

FM_END_DECLS
#endif
