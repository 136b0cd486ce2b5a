/* gguf_pooling.c - a GGUF's pooling_type as the files of a sentence-transformers folder. */
#include "store/import/gguf_canon.h"

#include <inttypes.h>
#include <stdio.h>

#define MODULE(n, path, kind)                                                                      \
    "{\"idx\": " #n ", \"name\": \"" #n "\", \"path\": \"" path                                    \
    "\", \"type\": \"sentence_transformers.models." kind "\"}"

static const char MODULES[] = "[" MODULE(0, "", "Transformer") ", " MODULE(
    1, "1_Pooling", "Pooling") ", " MODULE(2, "2_Normalize", "Normalize") "]";

static fm_status put_config(fm_source *src, const gguf_dims *d, const char *word)
{
    char key[64];
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? gguf_set_int(o, "word_embedding_dimension", d->hidden) : FM_ENOMEM;

    for (uint64_t i = 1; rc == FM_OK && gguf_pooling_word(i); i++) {
        snprintf(key, sizeof key, "pooling_mode_%s", gguf_pooling_word(i));
        rc = fm_json_set(o, key, fm_json_new_bool(gguf_pooling_word(i) == word));
    }
    FM_THEN(rc, src_put_json(src, "source/files/1_Pooling/config.json", o, FM_JSON_PRETTY));
    fm_json_free(o);
    return rc;
}

fm_status gguf_pooling(fm_source *src, const gguf_dims *d, const fm_gguf *g)
{
    char key[128];
    uint64_t type = 0;
    bool found = false;

    FM_TRY(fm_gguf_u64(g, gguf_key(d->arch, "pooling_type", key), &type, &found));
    if (type == 0)
        return FM_OK;
    const char *word = gguf_pooling_word(type);
    if (!word)
        return fm_fail(FM_EUNSUPPORTED, "%s: field '%s': %" PRIu64 " is no known pooling",
                       fm_gguf_what(g), key, type);
    FM_TRY(put_config(src, d, word));
    return src_put_copy(src, "source/files/modules.json", fm_span_str(MODULES));
}
