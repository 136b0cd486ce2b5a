/* gguf_vocab.c - the parts of a tokenizer.json that every kind of vocabulary of a GGUF needs. */
#include "store/import/gguf_tok.h"

#include <string.h>

fm_status gguf_bad(const fm_gguf *g, const char *field, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: field '%s' %s", fm_gguf_what(g), field, why);
}

int64_t gguf_token_type(const gguf_vocab *v, uint64_t id)
{
    return v->types ? fm_gguf_int_at(v->types, id) : GGUF_TOKEN_NORMAL;
}

fm_json *gguf_token_str(const gguf_vocab *v, uint64_t id)
{
    return fm_json_new_strn((const char *)v->text[id].data, v->text[id].len);
}

fm_status gguf_vocab_json(fm_json **out, const gguf_vocab *v)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    char *key = NULL;

    *out = o;
    for (uint64_t i = 0; rc == FM_OK && i < v->tokens->count; i++) {
        key = fm_strndup((const char *)v->text[i].data, v->text[i].len);
        rc = key ? fm_json_set(o, key, fm_json_new_int((int64_t)i)) : FM_ENOMEM;
        fm_free(key);
    }
    if (rc == FM_OK && fm_json_count(o) != v->tokens->count)
        rc = gguf_bad(v->g, "tokenizer.ggml.tokens", "holds one token twice");
    return rc;
}

static fm_status push_added(fm_json *list, const gguf_vocab *v, uint64_t id, bool special)
{
    static const char *const flag[] = {"single_word", "lstrip", "rstrip"};
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "id", fm_json_new_int((int64_t)id)) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "content", gguf_token_str(v, id)));
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(flag); i++)
        rc = fm_json_set(o, flag[i], fm_json_new_bool(false));
    FM_THEN(rc, fm_json_set(o, "normalized", fm_json_new_bool(false)));
    FM_THEN(rc, fm_json_set(o, "special", fm_json_new_bool(special)));
    FM_THEN(rc, fm_json_push(list, fm_json_ref(o)));
    fm_json_free(o);
    return rc;
}

fm_status gguf_added_json(fm_json **out, const gguf_vocab *v)
{
    *out = fm_json_new_array();
    if (!*out)
        return FM_ENOMEM;
    for (uint64_t i = 0; v->types && i < v->tokens->count; i++) {
        int64_t type = gguf_token_type(v, i);
        if (type != GGUF_TOKEN_CONTROL && type != GGUF_TOKEN_USER)
            continue;
        if (v->text[i].len == 0)
            return gguf_bad(v->g, "tokenizer.ggml.tokens", "holds an empty special token");
        FM_TRY(push_added(*out, v, i, type == GGUF_TOKEN_CONTROL));
    }
    return FM_OK;
}

fm_status gguf_special_id(const gguf_vocab *v, const char *key, uint64_t *id, bool *found)
{
    FM_TRY(fm_gguf_u64(v->g, key, id, found));

    if (*found && *id >= v->tokens->count)
        FM_TRY(gguf_bad(v->g, key, "is beyond the vocabulary"));
    return FM_OK;
}

/* {"SpecialToken": {"id": text, "type_id": n}} or {"Sequence": {"id": "A", "type_id": n}} */
static fm_status push_step(fm_json *list, const char *kind, fm_json *id, int64_t type_id)
{
    fm_json *inner = fm_json_new_object(), *outer = fm_json_new_object();
    fm_status rc = inner && outer ? FM_OK : FM_ENOMEM;

    if (rc < 0)
        fm_json_free(id);
    else
        rc = fm_json_set(inner, "id", id);
    FM_THEN(rc, fm_json_set(inner, "type_id", fm_json_new_int(type_id)));
    FM_THEN(rc, fm_json_set(outer, kind, fm_json_ref(inner)));
    FM_THEN(rc, fm_json_push(list, fm_json_ref(outer)));
    fm_json_free(inner);
    fm_json_free(outer);
    return rc;
}

static fm_status template_json(fm_json **out, const gguf_wrap *w, unsigned texts)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    *out = list;
    for (unsigned i = 0; rc == FM_OK && i < texts; i++) {
        if (w->bos)
            rc = push_step(list, "SpecialToken", gguf_token_str(w->v, w->bos_id), i);
        FM_THEN(rc, push_step(list, "Sequence", fm_json_new_str(i == 0 ? "A" : "B"), i));
        if (rc == FM_OK && w->eos)
            rc = push_step(list, "SpecialToken", gguf_token_str(w->v, w->eos_id), i);
    }
    return rc;
}

static fm_status add_special(fm_json *map, const gguf_wrap *w, uint64_t id)
{
    fm_json *o = fm_json_new_object(), *ids = fm_json_new_array(), *tokens = fm_json_new_array();
    char *key = fm_strndup((const char *)w->v->text[id].data, w->v->text[id].len);
    fm_status rc = o && ids && tokens && key ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, fm_json_push(ids, fm_json_new_int((int64_t)id)));
    FM_THEN(rc, fm_json_push(tokens, gguf_token_str(w->v, id)));
    FM_THEN(rc, fm_json_set(o, "id", gguf_token_str(w->v, id)));
    FM_THEN(rc, fm_json_set(o, "ids", fm_json_ref(ids)));
    FM_THEN(rc, fm_json_set(o, "tokens", fm_json_ref(tokens)));
    FM_THEN(rc, fm_json_set(map, key, fm_json_ref(o)));
    fm_free(key);
    fm_json_free(tokens);
    fm_json_free(ids);
    fm_json_free(o);
    return rc;
}

fm_status gguf_post_processor(fm_json **out, const gguf_wrap *w)
{
    fm_json *o = fm_json_new_object(), *map = fm_json_new_object(), *single = NULL, *pair = NULL;
    fm_status rc = o && map ? template_json(&single, w, 1) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, template_json(&pair, w, 2));
    if (rc == FM_OK && w->bos)
        rc = add_special(map, w, w->bos_id);
    if (rc == FM_OK && w->eos)
        rc = add_special(map, w, w->eos_id);
    FM_THEN(rc, fm_json_set(o, "type", fm_json_new_str("TemplateProcessing")));
    FM_THEN(rc, fm_json_set(o, "single", fm_json_ref(single)));
    FM_THEN(rc, fm_json_set(o, "pair", fm_json_ref(pair)));
    FM_THEN(rc, fm_json_set(o, "special_tokens", fm_json_ref(map)));
    fm_json_free(single);
    fm_json_free(pair);
    fm_json_free(map);
    return rc;
}

fm_status gguf_read_wrap(gguf_wrap *w, const gguf_vocab *v, bool bos, bool eos)
{
    bool found = false, has_bos = false, has_eos = false;
    fm_status rc;

    memset(w, 0, sizeof *w);
    w->v = v;
    w->bos = bos;
    w->eos = eos;
    rc = fm_gguf_bool(v->g, "tokenizer.ggml.add_bos_token", &w->bos, &found);
    FM_THEN(rc, fm_gguf_bool(v->g, "tokenizer.ggml.add_eos_token", &w->eos, &found));
    FM_THEN(rc, gguf_special_id(v, "tokenizer.ggml.bos_token_id", &w->bos_id, &has_bos));
    FM_THEN(rc, gguf_special_id(v, "tokenizer.ggml.eos_token_id", &w->eos_id, &has_eos));
    w->bos = w->bos && has_bos;
    w->eos = w->eos && has_eos;
    return rc;
}

void gguf_tok_parts_free(gguf_tok_parts *p)
{
    fm_json_free(p->added);
    fm_json_free(p->normalizer);
    fm_json_free(p->pre);
    fm_json_free(p->post);
    fm_json_free(p->decoder);
    fm_json_free(p->model);
}

fm_status gguf_put_parts(fm_source *src, const gguf_tok_parts *p)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "version", fm_json_new_str("1.0")) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "truncation", fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "padding", fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "added_tokens", fm_json_ref(p->added)));
    FM_THEN(rc, fm_json_set(o, "normalizer",
                            p->normalizer ? fm_json_ref(p->normalizer) : fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "pre_tokenizer", p->pre ? fm_json_ref(p->pre) : fm_json_new_null()));
    FM_THEN(rc,
            fm_json_set(o, "post_processor", p->post ? fm_json_ref(p->post) : fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "decoder", fm_json_ref(p->decoder)));
    FM_THEN(rc, fm_json_set(o, "model", fm_json_ref(p->model)));
    FM_THEN(rc, src_put_json(src, "tokenizer/tokenizer.json", o, FM_JSON_COMPACT));
    fm_json_free(o);
    return rc;
}
