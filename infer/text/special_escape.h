/* special_escape.h - strangers' text that cannot speak special tokens through a chat template.
 *
 * A template joins its own special tokens and what people wrote into one text. Where a string of
 * the messages holds the text of a special token (or an end or beginning of one that could become
 * one beside its neighbour), a mark that no string holds is put inside it; the marks travel through
 * the template, are taken out of its text, and no special token is found across their places.
 * Strings without such text are not touched, so that the ids are those of Hugging Face there. */
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
 * outcome. FM_EINVAL: they hold every mark there is. */
FM_CHECKED fm_status fmi_special_escape_init(fmi_special_escape *g, const fm_tokenizer *t,
                                             const fm_json *const *values, size_t n);
/* value with its strings marked; the caller frees. NULL gives NULL. */
FM_CHECKED fm_status fmi_special_escape_value(fmi_special_escape *g, fm_json **out,
                                              const fm_json *value);
/* Take the marks out of a rendered text, filling g->at. */
FM_CHECKED fm_status fmi_special_escape_strip(fmi_special_escape *g, fm_buf *text);
void fmi_special_escape_release(fmi_special_escape *g);

FM_END_DECLS
#endif
