/* openai_read.h - how a field of a request is read; shared by api_openai.c and api_format.c. */
#ifndef FM_INFER_SERVE_OPENAI_READ_H
#define FM_INFER_SERVE_OPENAI_READ_H

#include "infer/serve/openai.h"

FM_BEGIN_DECLS

typedef struct fmi_ask_reader {
    fmi_ask *a;
    const fm_json *v;
    const char *name;
    uint32_t cap;
} fmi_ask_reader;

/* Notes the field at fault and returns rc; the caller sets the error text by fm_fail. */
fm_status fmi_ask_at(fmi_ask *a, const char *param, fm_status rc);
/* "null", "a number", ... */
const char *fmi_ask_type(const fm_json *v);
/* "'name' must be ..., is ..." */
fm_status fmi_ask_wants(const fmi_ask_reader *r, const char *what);

/* Forms of answers (api_format.c): response_format, and the spellings of other servers. */
fm_status fmi_ask_take_format(fmi_ask_reader *r);
fm_status fmi_ask_take_guided_json(fmi_ask_reader *r);
fm_status fmi_ask_take_structured(fmi_ask_reader *r);

FM_END_DECLS
#endif
