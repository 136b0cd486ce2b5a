/* tokenizer.c - opens a tokenizer and takes a text through its parts: added tokens are cut out, the
 * rest is normalised, cut into words, and merged; then the template's ids are put around. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

/* Limits of steps of regular expressions: for one match; and for all failing ones in a text. */
#define MATCH_STEPS 10000000u
#define TEXT_STEPS ((size_t)100000000)
#define BYTE_STEPS 16u /* added to TEXT_STEPS for each byte of the text */

static fm_status scratch_init(fmi_tok_scratch *s, size_t text_bytes)
{
    memset(s, 0, sizeof *s);
    fm_buf_init(&s->a.text, FM_TOK_TEXT_MAX * 4);
    fm_buf_init(&s->b.text, FM_TOK_TEXT_MAX * 4);
    fm_buf_init(&s->norm[0], FM_TOK_TEXT_MAX * 4);
    fm_buf_init(&s->norm[1], FM_TOK_TEXT_MAX * 4);
    s->grow_left = FMI_TOK_GROW_TIMES * text_bytes + FMI_TOK_GROW_MORE;
    return fm_regex_run_new(&s->run, MATCH_STEPS, TEXT_STEPS + BYTE_STEPS * text_bytes);
}

static void scratch_release(fmi_tok_scratch *s)
{
    fm_buf_release(&s->a.text);
    fm_buf_release(&s->b.text);
    fm_buf_release(&s->norm[0]);
    fm_buf_release(&s->norm[1]);
    fm_free(s->a.p);
    fm_free(s->b.p);
    fm_free(s->sym);
    fm_free(s->heap);
    fm_free(s->best);
    fm_free(s->spm_sym);
    fm_free(s->spm_pair);
    fm_regex_run_free(s->run);
}

/* ---- opening: post-processor ---- */

typedef struct around { /* the ids that one post-processor puts around a text */
    int32_t id[2][FMI_TOK_TEMPLATE_MAX];
    size_t count[2];
} around;

static fm_status add_template_id(around *w, bool after, const fm_tokenizer *t, int64_t id)
{
    if (w->count[after] == FMI_TOK_TEMPLATE_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer.json: post_processor: more than %d special tokens",
                       FMI_TOK_TEMPLATE_MAX);
    if (id < 0 || id >= (int64_t)FM_TOK_VOCAB_MAX || !fmi_vocab_text(&t->all, (int32_t)id).data)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: post_processor: unknown token id");
    w->id[after][w->count[after]++] = (int32_t)id;
    return FM_OK;
}

/* Reads one template item: {"SpecialToken": {"id": name}} before or behind {"Sequence": ...}. */
static fm_status template_item(around *w, const fm_tokenizer *t, const fm_json *v,
                               const fm_json *item, bool *after)
{
    const fm_json *seq = fm_json_get(item, "Sequence");
    const char *name = fm_json_cstr(fm_json_path(item, "SpecialToken.id"), NULL);

    if (seq) {
        if (*after || strcmp(fm_json_cstr(fm_json_get(seq, "id"), ""), "A") != 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "tokenizer.json: post_processor.single must hold $A once");
        *after = true;
        return FM_OK;
    }
    const fm_json *ids =
        name ? fm_json_get(fm_json_get(fm_json_get(v, "special_tokens"), name), "ids") : NULL;
    if (!fm_json_is(ids, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "tokenizer.json: post_processor: special token '%s' has no ids",
                       name ? name : "?");
    for (size_t i = 0; i < fm_json_count(ids); i++) {
        FM_TRY(add_template_id(w, *after, t, fm_json_int(fm_json_at(ids, i), -1)));
    }
    return FM_OK;
}

static fm_status parse_template(around *w, const fm_tokenizer *t, const fm_json *v)
{
    const fm_json *single = fm_json_get(v, "single");
    bool after = false;

    if (!fm_json_is(single, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "tokenizer.json: post_processor: 'single' must be a list");
    for (size_t i = 0; i < fm_json_count(single); i++) {
        FM_TRY(template_item(w, t, v, fm_json_at(single, i), &after));
    }
    if (!after)
        return fm_fail(FM_EUNSUPPORTED, "tokenizer.json: post_processor.single lacks $A");
    return FM_OK;
}

/* Reads "sep" and "cls": ["[SEP]", 102] and ["[CLS]", 101]. */
static fm_status parse_cls_sep(around *w, const fm_tokenizer *t, const fm_json *v)
{
    FM_TRY(add_template_id(w, false, t, fm_json_int(fm_json_at(fm_json_get(v, "cls"), 1), -1)));

    return add_template_id(w, true, t, fm_json_int(fm_json_at(fm_json_get(v, "sep"), 1), -1));
}

/* Adds the ids of a later post-processor of a sequence around those of the earlier ones. */
static fm_status wrap(fm_tokenizer *t, const around *w)
{
    size_t before = w->count[0], after = w->count[1];

    if (before + t->prefix_count > FMI_TOK_TEMPLATE_MAX ||
        after + t->suffix_count > FMI_TOK_TEMPLATE_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer.json: post_processor: more than %d special tokens",
                       FMI_TOK_TEMPLATE_MAX);
    memmove(t->prefix + before, t->prefix, t->prefix_count * sizeof *t->prefix);
    memcpy(t->prefix, w->id[0], before * sizeof *t->prefix);
    memcpy(t->suffix + t->suffix_count, w->id[1], after * sizeof *t->suffix);
    t->prefix_count += before;
    t->suffix_count += after;
    return FM_OK;
}

static fm_status parse_post(fm_tokenizer *t, const fm_json *v, int depth)
{
    const char *type = fm_json_cstr(fm_json_get(v, "type"), "");
    around w = {.count = {0, 0}};

    if (fm_json_typeof(v) == FM_JSON_NULL || strcmp(type, "ByteLevel") == 0)
        return FM_OK; /* ByteLevel trims offsets, which are not kept */
    if (strcmp(type, "Sequence") == 0 && depth <= 4) {
        const fm_json *list = fm_json_get(v, "processors");
        for (size_t i = 0; i < fm_json_count(list); i++)
            FM_TRY(parse_post(t, fm_json_at(list, i), depth + 1));
        return FM_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0)
        FM_TRY(parse_template(&w, t, v));
    else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        FM_TRY(parse_cls_sep(&w, t, v));
    else
        return fm_fail(FM_EUNSUPPORTED,
                       "tokenizer.json: post_processor: type '%s' is not implemented", type);
    return wrap(t, &w);
}

/* ---- opening: tables ---- */

static fm_status merge_added(fm_tokenizer *t)
{
    const fmi_vocab *v = fmi_model_vocab(&t->model);

    t->all.twice_ok = v->twice_ok;
    for (size_t id = 0; id < v->size; id++) {
        fm_span text = fmi_vocab_text(v, (int32_t)id);
        FM_TRY(text.data ? fmi_vocab_put(&t->all, text, (uint32_t)id) : FM_OK);
    }
    for (size_t i = 0; i < t->added.count; i++) {
        const fmi_added_token *a = &t->added.tok[i];
        fm_span text = fm_span_of(a->text, a->len);
        int32_t old = fmi_vocab_find(&t->all, text);
        if (old == a->id || fm_span_eq(fmi_vocab_text(&t->all, a->id), text))
            continue;
        if (old >= 0)
            return fm_fail(FM_ECORRUPT,
                           "tokenizer.json: added token '%.60s' has id %d, the vocabulary says %d",
                           a->text, a->id, old);
        FM_TRY(fmi_vocab_put(&t->all, text, (uint32_t)a->id));
    }
    return FM_OK;
}

/* Decodes all tokens; added tokens decode to the text by which they are matched. */
static fm_status decode_all(fm_tokenizer *t)
{
    fm_span *text = fm_calloc(t->all.size + 1, sizeof *text);

    if (!text)
        return FM_ENOMEM;
    for (size_t id = 0; id < t->all.size; id++)
        text[id] = fmi_vocab_text(&t->all, (int32_t)id);
    for (size_t i = 0; i < t->added.count; i++)
        text[t->added.tok[i].id] = fm_span_of(t->added.tok[i].shown, t->added.tok[i].shown_len);
    fm_status rc = fmi_decoder_prepare(&t->decoder, text, t->all.size);
    fm_free(text);
    return rc;
}

static fm_status mark_special(fm_tokenizer *t)
{
    t->special = fm_calloc(t->all.size + 1, 1);
    if (!t->special)
        return FM_ENOMEM;
    for (size_t i = 0; i < t->added.count; i++)
        t->special[t->added.tok[i].id] = t->added.tok[i].special;
    return FM_OK;
}

/* The id of a token given as "<s>" or {"content": "<s>", ...}; -1 where absent, null or unknown. */
static int32_t named_token(const fm_tokenizer *t, const fm_json *config, const char *key)
{
    const fm_json *v = fm_json_get(config, key);
    fm_span s = fm_json_str(fm_json_is(v, FM_JSON_OBJECT) ? fm_json_get(v, "content") : v);

    return s.data ? fmi_vocab_find(&t->all, s) : -1;
}

static fm_status take_template(fm_tokenizer *t, const fm_json *v)
{
    fm_span s = fm_json_str(v);

    for (size_t i = 0; fm_json_is(v, FM_JSON_ARRAY) && i < fm_json_count(v); i++) {
        const fm_json *one = fm_json_at(v, i);
        if (strcmp(fm_json_cstr(fm_json_get(one, "name"), ""), "default") == 0)
            s = fm_json_str(fm_json_get(one, "template"));
    }
    if (!s.data)
        return FM_OK;
    t->chat_template = fm_strndup((const char *)s.data, s.len);
    t->chat_template_len = s.len;
    return t->chat_template ? FM_OK : FM_ENOMEM;
}

static void take_named(int32_t *out, const fm_tokenizer *t, const fm_json *config, const char *key)
{
    int32_t id = named_token(t, config, key);

    *out = id >= 0 ? id : *out;
}

static fm_status read_config(fm_tokenizer *t, const fm_json *config)
{
    take_named(&t->bos, t, config, "bos_token");
    take_named(&t->eos, t, config, "eos_token");
    take_named(&t->pad, t, config, "pad_token");
    take_named(&t->unk, t, config, "unk_token");
    if (t->add_bos && t->bos >= 0)
        t->prefix[t->prefix_count++] = t->bos;
    if (t->add_eos && t->eos >= 0)
        t->suffix[t->suffix_count++] = t->eos;
    return take_template(t, fm_json_get(config, "chat_template"));
}

static fm_status read_json(fm_tokenizer *t, const fm_json *root)
{
    fm_status rc;

    if ((rc = fmi_norms_parse(&t->norms, fm_json_get(root, "normalizer"))) < 0 ||
        (rc = fmi_pres_parse(&t->pres, fm_json_get(root, "pre_tokenizer"))) < 0 ||
        (rc = fmi_decoder_parse(&t->decoder, fm_json_get(root, "decoder"))) < 0 ||
        (rc = fmi_added_parse(&t->added, fm_json_get(root, "added_tokens"))) < 0)
        return rc;
    return fmi_model_parse(&t->model, fm_json_get(root, "model"));
}

static size_t added_bytes(const fmi_added *a)
{
    size_t sum = 0;

    for (size_t i = 0; i < a->count; i++)
        sum += a->tok[i].len;
    return sum;
}

/* Finishes opening. root: tokenizer.json; NULL: the parts are there already. */
static fm_status finish(fm_tokenizer *t, const fm_json *root, const fm_json *config)
{
    fmi_tok_scratch scratch;
    fm_status rc = scratch_init(&scratch, added_bytes(&t->added));

    if (rc < 0)
        return rc;
    if ((rc = merge_added(t)) < 0 ||
        (rc = parse_post(t, fm_json_get(root, "post_processor"), 0)) < 0 ||
        (rc = fmi_added_build(&t->added, &t->norms, &scratch)) < 0 || (rc = mark_special(t)) < 0 ||
        (rc = decode_all(t)) < 0)
        goto out;
    rc = read_config(t, config);
out:
    scratch_release(&scratch);
    return rc;
}

/* A SentencePiece model begins with a field's key, a tokenizer.json with a brace. */
static bool is_spm(fm_span file)
{
    size_t i = 0;

    while (i < file.len && strchr(" \t\r\n", file.data[i]) && file.data[i] != 0)
        i++;
    if (i == file.len || file.data[i] == '{')
        return false;
    return strchr("\x0a\x12\x1a\x22\x2a", file.data[0]) != NULL && file.data[0] != 0;
}

const char *const fm_tokenizer_paths[] = {"tokenizer/tokenizer.json", "tokenizer/tokenizer.model",
                                          "tokenizer/spiece.model", NULL};

fm_status fm_tokenizer_open(fm_tokenizer **out, fm_span file, fm_span tokenizer_config_json,
                            const char *what)
{
    fm_json *root = NULL, *config = NULL;
    fm_tokenizer *t = fm_calloc(1, sizeof *t);
    bool spm = is_spm(file);
    fm_status rc = t ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK && tokenizer_config_json.data && tokenizer_config_json.len > 0)
        rc = fm_json_parse(&config, tokenizer_config_json, "tokenizer_config.json");
    if (rc == FM_OK && !spm)
        rc = fm_json_parse(&root, file, "tokenizer.json");
    if (rc < 0)
        goto fail;
    t->bos = t->eos = t->pad = t->unk = -1;
    rc = spm ? fmi_spm_open(t, file, config) : read_json(t, root);
    FM_THEN(rc, finish(t, root, config));
    if (rc < 0)
        goto fail;
    fm_json_free(root);
    fm_json_free(config);
    *out = t;
    return FM_OK;
fail:
    fm_json_free(root);
    fm_json_free(config);
    fm_tokenizer_close(t);
    return what && rc != FM_ENOMEM ? fm_error_prefix(rc, "%s", what) : rc;
}

void fm_tokenizer_close(fm_tokenizer *t)
{
    if (!t)
        return;
    fmi_norms_release(&t->norms);
    fmi_pres_release(&t->pres);
    fmi_decoder_release(&t->decoder);
    fmi_added_release(&t->added);
    fmi_model_release(&t->model);
    fmi_vocab_release(&t->all);
    fm_free(t->special);
    fm_free(t->chat_template);
    fm_free(t);
}

/* ---- encoding ---- */

/* Encodes a normalised segment without added tokens. */
static fm_status encode_words(const fm_tokenizer *t, fmi_tok_scratch *s, fm_span text, bool first,
                              fm_ids *out)
{
    s->a.count = 0;
    fm_buf_clear(&s->a.text);
    s->a.text.max = fmi_room(text.len, s->grow_left);
    fm_buf_append(&s->a.text, text.data, text.len);
    FM_TRY(fm_buf_ok(&s->a.text));
    FM_TRY(fmi_pieces_add(&s->a, 0, text.len));
    FM_TRY(fmi_pres_run(&t->pres, s, first));
    for (size_t i = 0, next = 0; i < s->a.count; i++) {
        FM_TRY(fm_go_on_at(i, &next));
        FM_TRY(fmi_model_encode(&t->model, s,
                                fm_span_of(s->a.text.data + s->a.p[i].off, s->a.p[i].len), out));
    }
    return FM_OK;
}

static fm_status encode_segment(const fm_tokenizer *t, fmi_tok_scratch *s, fm_span text, bool first,
                                bool plain, fm_ids *out)
{
    fmi_added_scan scan = {.added = &t->added, .trie = t->added.normalized, .plain = plain};
    fmi_segment seg;

    s->first_segment = first;
    FM_TRY(fmi_norms_run(&t->norms, s, text, &scan.text));

    while (fmi_added_next(&scan, &seg)) {
        FM_TRY(fm_go_on());

        if (seg.id >= 0)
            FM_TRY(fm_ids_push(out, seg.id));
        else
            FM_TRY(encode_words(t, s, fm_span_of(scan.text.data + seg.begin, seg.end - seg.begin),
                                first && !s->head_lost && seg.begin == 0, out));
    }
    return fm_go_on(); /* which ends fmi_added_next early */
}

static fm_status encode_at(const fm_tokenizer *t, fmi_added_scan scan, bool add_special,
                           fm_ids *out)
{
    fm_span text = scan.text;
    fmi_tok_scratch s;
    fmi_segment seg;
    size_t valid = text.len > 0 ? fm_utf8_valid(text.data, text.len) : 0;
    fm_status rc;

    if (text.len > FM_TOK_TEXT_MAX)
        return fm_fail(FM_ELIMIT, "encode: text of %zu bytes (at most %zu)", text.len,
                       FM_TOK_TEXT_MAX);
    if (valid != text.len)
        return fm_fail(FM_EINVAL, "encode: text is not UTF-8 at byte %zu", valid);
    rc = scratch_init(&s, text.len);
    for (size_t i = 0; add_special && i < t->prefix_count && rc == FM_OK; i++)
        rc = fm_ids_push(out, t->prefix[i]);
    while (rc == FM_OK && fmi_added_next(&scan, &seg)) {
        if (seg.id >= 0)
            rc = fm_ids_push(out, seg.id);
        else
            rc = encode_segment(t, &s, fm_span_of(text.data + seg.begin, seg.end - seg.begin),
                                seg.begin == 0,
                                scan.plain || fmi_added_marked(&scan, seg.begin, seg.end), out);
    }
    FM_THEN(rc, fm_go_on());
    for (size_t i = 0; add_special && i < t->suffix_count && rc == FM_OK; i++)
        rc = fm_ids_push(out, t->suffix[i]);
    scratch_release(&s);
    return rc;
}

static fm_status encode(const fm_tokenizer *t, fm_span text, bool add_special, bool plain,
                        fm_ids *out)
{
    fmi_added_scan scan = {.added = &t->added, .trie = t->added.raw, .text = text, .plain = plain};

    return encode_at(t, scan, add_special, out);
}

fm_status fm_tokenizer_encode_marked(const fm_tokenizer *t, fm_span text, const size_t *mark,
                                     size_t marks, fm_ids *out)
{
    fmi_added_scan scan = {
        .added = &t->added, .trie = t->added.raw, .text = text, .mark = mark, .marks = marks};

    return encode_at(t, scan, false, out);
}

fm_status fm_tokenizer_encode(const fm_tokenizer *t, fm_span text, bool add_special, fm_ids *out)
{
    return encode(t, text, add_special, false, out);
}

fm_status fm_tokenizer_encode_plain(const fm_tokenizer *t, fm_span text, bool add_special,
                                    fm_ids *out)
{
    return encode(t, text, add_special, true, out);
}
