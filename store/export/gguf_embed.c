/* gguf_embed.c - what a GGUF of an encoder has besides: its pooling and BERT's tokens. */
#include "store/export/gguf_impl.h"

#include <stdio.h>
#include <string.h>

#define WORD_START "\xe2\x96\x81"

/* ---- pooling ---- */

/* The class of a module: "sentence_transformers.models.Pooling" is "Pooling". */
static const char *class_of(const fm_json *module)
{
    const char *type = fm_json_cstr(fm_json_get(module, "type"), "");
    const char *dot = strrchr(type, '.');

    return dot ? dot + 1 : type;
}

/* The number of the one mode that is on; 0: none, or several. */
static uint64_t mode_of(const fm_json *config)
{
    char key[64];
    uint64_t mode = 0, on = 0;

    for (uint64_t i = 1; gguf_pooling_word(i); i++) {
        const char *word = gguf_pooling_word(i);
        const char *name = fm_json_cstr(fm_json_get(config, "pooling_mode"), "");
        snprintf(key, sizeof key, "pooling_mode_%s", word);
        if (fm_json_bool(fm_json_get(config, key), false) ||
            (*name && strncmp(word, name, strlen(name)) == 0)) {
            mode = i;
            on++;
        }
    }
    return on == 1 ? mode : 0;
}

static fm_status put_mode(ggw_fields *f, const fm_view *v, const ggw_model *m,
                          const fm_json *module)
{
    char key[128], *path = fm_asprintf("source/files/%.100s/config.json",
                                       fm_json_cstr(fm_json_get(module, "path"), ""));
    fm_json *config = NULL;
    fm_status rc = path ? exp_read_json(&config, v, path) : FM_ENOMEM;
    const uint64_t mode = mode_of(config);

    if (rc == FM_OK && mode == 0)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: says no pooling that llama.cpp has (mean, cls or the last token); export "
                     "with --format hf",
                     path);
    if (rc == FM_OK)
        ggw_u32(f, gguf_key(m->arch, "pooling_type", key), mode);
    fm_json_free(config);
    fm_free(path);
    return rc;
}

fm_status ggw_pooling(ggw_fields *f, const fm_view *v, const ggw_model *m)
{
    fm_json *modules = NULL;
    fm_status rc = exp_read_json(&modules, v, "source/files/modules.json");

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(modules); i++) {
        const char *type = class_of(fm_json_at(modules, i));
        if (strcmp(type, "Pooling") == 0)
            rc = put_mode(f, v, m, fm_json_at(modules, i));
        else if (strcmp(type, "Transformer") != 0 && strcmp(type, "Normalize") != 0)
            rc = fm_fail(FM_EUNSUPPORTED,
                         "modules.json: a module of type '%.60s' has no words in a GGUF; export "
                         "with --format hf",
                         type);
    }
    fm_json_free(modules);
    return rc;
}

/* ---- tokens ---- */

/* BERT marks what goes on a word by "##", a GGUF what begins one by U+2581. */
fm_status ggw_phantom(fm_span *token, fm_arena *arena)
{
    const size_t mark = sizeof WORD_START - 1;
    uint8_t *text;

    if (token->len >= 2 && memcmp(token->data, "##", 2) == 0) {
        *token = fm_span_of(token->data + 2, token->len - 2);
        return FM_OK;
    }
    text = fm_arena_alloc(arena, token->len + mark + 1);
    if (!text)
        return FM_ENOMEM;
    memcpy(text, WORD_START, mark);
    if (token->len > 0)
        memcpy(text + mark, token->data, token->len);
    *token = fm_span_of(text, token->len + mark);
    return FM_OK;
}
