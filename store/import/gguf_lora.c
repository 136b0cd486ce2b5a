/* gguf_lora.c - llama.cpp's LoRA adapters ("general.type" is "adapter") as PEFT's.
 *
 * Such a file names tensors of its base and says nothing else about it: names, and the heads by
 * which rows of Q and K turn, come from the parent's model.json. */
#include "store/import/gguf_canon.h"

#include <math.h>
#include <string.h>

#define ROOT "adapters/0-lora"

typedef struct lora {
    fm_source *src;
    src_file *f;
    const fm_gguf *g;
    gguf_dims dims; /* of the parent */
    double alpha;
    fm_json *ranks; /* by module, under HF's name */
    fm_json *kinds; /* the last words of these names, as keys */
} lora;

static fm_status bad(const lora *l, fm_status rc, const char *name, const char *why)
{
    return fm_fail(rc, "%s: '%.200s' %s", fm_gguf_what(l->g), name, why);
}

bool gguf_is_adapter(const fm_gguf *g)
{
    fm_span type = {NULL, 0};
    bool found = false;

    if (fm_gguf_str(g, "general.type", &type, &found) == FM_OK)
        return found && fm_span_eq_str(type, "adapter");
    fm_error_clear();
    return false;
}

/* ---- the parent ---- */

static fm_status count_of(uint64_t *out, const fm_json *config, const char *field,
                          uint64_t otherwise)
{
    const int64_t n = fm_json_int(fm_json_get(config, field), (int64_t)otherwise);

    if (n < 1 || n > 1 << 30)
        return fm_fail(FM_EUNSUPPORTED, "the parent's config.json: field '%s' is missing or absurd",
                       field);
    *out = (uint64_t)n;
    return FM_OK;
}

static fm_status read_dims(lora *l, const fm_json *config)
{
    const char *type = fm_json_cstr(fm_json_get(config, "model_type"), "");
    gguf_dims *d = &l->dims;
    fm_span arch = {NULL, 0};
    bool found = false;

    FM_TRY(gguf_arch_of_config(&d->arch, config));
    FM_TRY(fm_gguf_str(l->g, "general.architecture", &arch, &found));
    if (!d->arch || !fm_span_eq_str(arch, d->arch->prefix))
        return fm_fail(FM_EBASE,
                       "%s: is for a model of GGUF's architecture '%.*s', and the parent is "
                       "of model_type '%.60s'",
                       fm_gguf_what(l->g), (int)FM_MIN(arch.len, (size_t)60),
                       (const char *)arch.data, type);
    const gguf_words *w = gguf_words_of(d->arch);
    FM_TRY(count_of(&d->layers, config, w->layers, 0));
    FM_TRY(count_of(&d->hidden, config, w->hidden, 0));
    FM_TRY(count_of(&d->heads, config, w->heads, 0));
    d->kv_heads = d->arch->has & GGUF_ONE_KV ? 1 : d->heads;
    if (w->kv_heads && d->kv_heads != 1)
        FM_TRY(count_of(&d->kv_heads, config, w->kv_heads, d->heads));
    d->head_dim = d->arch->head_dim ? d->arch->head_dim : d->hidden / d->heads;
    return w->head_dim ? count_of(&d->head_dim, config, w->head_dim, d->head_dim) : FM_OK;
}

static fm_status read_parent(lora *l)
{
    const fm_entry *e = fm_tree_find(l->src->parent, "model.json");
    fm_json *model = NULL;
    fm_buf text;

    if (!e)
        return fm_fail(FM_EBASE, "%s: the parent has no model.json, which gives names and heads",
                       fm_gguf_what(l->g));
    fm_buf_init(&text, 0);
    fm_status rc = fm_entry_read(&text, l->src->parent_p, e);
    FM_THEN(rc, fm_json_parse(&model, fm_buf_span(&text), "the parent's model.json"));
    FM_THEN(rc, read_dims(l, fm_json_get(model, "config")));
    fm_json_free(model);
    fm_buf_release(&text);
    return rc;
}

/* ---- the factors ---- */

/* The two factors of a tensor, whose name stands in front of the suffix. */
typedef struct pair {
    char name[FM_MAX_NAME_BYTES + 1]; /* of the base's tensor */
    const fm_gguf_tensor *a, *b;
    bool is_a; /* the one in question */
} pair;

static fm_status find_pair(pair *out, const lora *l, const fm_gguf_tensor *t)
{
    const size_t n = strlen(t->name);
    char other[FM_MAX_NAME_BYTES + 1];

    if (n <= 7 || n > FM_MAX_NAME_BYTES ||
        (strcmp(t->name + n - 7, ".lora_a") != 0 && strcmp(t->name + n - 7, ".lora_b") != 0))
        return bad(l, FM_EUNSUPPORTED, t->name,
                   "is no factor of a LoRA, which llama.cpp leaves out");
    out->is_a = t->name[n - 1] == 'a';
    memcpy(other, t->name, n + 1);
    other[n - 1] = out->is_a ? 'b' : 'a';
    const fm_gguf_tensor *partner = fm_gguf_find(l->g, other);
    if (!partner)
        return bad(l, FM_ECORRUPT, t->name, "has no partner");
    out->a = out->is_a ? t : partner;
    out->b = out->is_a ? partner : t;
    if (out->a->shape.rank != 2 || out->b->shape.rank != 2 ||
        out->a->shape.dim[0] != out->b->shape.dim[1])
        return bad(l, FM_EUNSUPPORTED, t->name,
                   "and its partner are no [rank, in] and [out, rank]");
    memcpy(out->name, t->name, n - 7);
    out->name[n - 7] = '\0';
    return FM_OK;
}

/* Notes a module and its rank. */
static fm_status note(lora *l, const char *module, uint64_t rank)
{
    const char *dot = strrchr(module, '.');
    FM_TRY(fm_json_set(l->ranks, module, fm_json_new_int((int64_t)rank)));

    return fm_json_set(l->kinds, dot ? dot + 1 : module, fm_json_new_bool(true));
}

static fm_status add_named(lora *l, const fm_gguf_tensor *t, const pair *p, const char *module,
                           src_order order)
{
    char *name = fm_asprintf("base_model.model.%s.lora_%c.weight", module, p->is_a ? 'A' : 'B');
    fm_status rc = name ? note(l, module, p->b->shape.dim[1]) : FM_ENOMEM;

    FM_THEN(rc, src_add_tensor(l->src, l->f, ROOT "/tensors", name, t->dtype, &t->shape,
                               fm_gguf_bytes(l->g, t), p->is_a ? (src_order){0, 0} : order));
    fm_free(name);
    return rc;
}

static fm_status add_factor(lora *l, const fm_gguf_tensor *t)
{
    pair p;
    gguf_use use;
    fm_buf name;
    FM_TRY(find_pair(&p, l, t));
    const fm_gguf_tensor base = {.name = p.name, .dtype = p.b->dtype, .shape = p.b->shape};

    if (strcmp(p.name, "token_embd.weight") == 0 || strstr(p.name, "_exps."))
        return bad(l, FM_EUNSUPPORTED, t->name,
                   "is on an embedding or on experts, which is not translated");
    fm_status rc = gguf_use_of(&use, &l->dims, l->g, &base);
    if (rc == FM_ECORRUPT) /* the file is sound, but of another model */
        rc = fm_fail(FM_EBASE, "%s, by the parent's config.json", fm_error_text());
    FM_TRY(rc);
    fm_buf_init(&name, 0);
    rc = use.no_weight ? FM_OK : gguf_hf_name(&name, &l->dims, &base, 0);
    const char *text = fm_buf_cstr(&name);
    if (rc == FM_OK && (name.len < 8 || strcmp(text + name.len - 7, ".weight") != 0))
        rc = bad(l, FM_EUNSUPPORTED, t->name, "is on no weight");
    char *module = rc == FM_OK ? fm_strndup(text, name.len - 7) : NULL;
    if (rc == FM_OK)
        rc = module ? add_named(l, t, &p, module, use.order) : FM_ENOMEM;
    fm_free(module);
    fm_buf_release(&name);
    return rc;
}

static fm_status add_file(lora *l)
{
    const src_file *f = l->f;
    uint64_t at = 0;

    for (size_t i = 0; i < fm_gguf_count(l->g); i++) {
        const fm_gguf_tensor *t = fm_gguf_at(l->g, i);
        FM_TRY(src_add_literal(l->src, l->f, fm_span_of(f->map.data + at, (size_t)(t->at - at))));
        FM_TRY(add_factor(l, t));
        at = t->at + t->bytes;
    }
    return src_add_literal(l->src, l->f, fm_span_of(f->map.data + at, f->map.len - (size_t)at));
}

/* ---- adapter_config.json ---- */

/* The modules whose rank is another than the config's. */
static fm_status other_ranks(fm_json *out, const lora *l, int64_t r)
{
    for (void *it = fm_json_iter(l->ranks); it; it = fm_json_next(l->ranks, it))
        if (fm_json_int(fm_json_iter_value(it), 0) != r)
            FM_TRY(fm_json_set(out, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
    return FM_OK;
}

/* Where every layer has the same modules, their last words say which; else whole names do. */
static fm_status put_targets(fm_json *config, const lora *l)
{
    const bool all = fm_json_count(l->ranks) == fm_json_count(l->kinds) * l->dims.layers;
    const fm_json *from = all ? l->kinds : l->ranks;
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    for (void *it = fm_json_iter(from); rc == FM_OK && it; it = fm_json_next(from, it))
        fm_json_push_to(&rc, list, fm_json_new_str(fm_json_iter_key(it)));
    fm_json_put(&rc, config, "target_modules", fm_json_ref(list));
    fm_json_free(list);
    return rc;
}

static fm_status put_config(lora *l)
{
    const int64_t r = fm_json_int(fm_json_iter_value(fm_json_iter(l->ranks)), 0);
    const double alpha = l->alpha == 0 ? (double)r : l->alpha; /* llama.cpp: 0 is a scale of 1 */
    const bool whole = alpha == floor(alpha) && fabs(alpha) < 1e9;
    fm_json *config = fm_json_new_object(), *others = fm_json_new_object();
    fm_status rc = config && others ? other_ranks(others, l, r) : FM_ENOMEM;

    fm_json_put(&rc, config, "peft_type", fm_json_new_str("LORA"));
    fm_json_put(&rc, config, "task_type", fm_json_new_str("CAUSAL_LM"));
    fm_json_put(&rc, config, "r", fm_json_new_int(r));
    fm_json_put(&rc, config, "lora_alpha",
                whole ? fm_json_new_int((int64_t)alpha) : fm_json_new_real(alpha));
    FM_THEN(rc, put_targets(config, l));
    if (fm_json_count(others) > 0) {
        fm_json_put(&rc, config, "rank_pattern", fm_json_ref(others));
        if (l->alpha == 0)
            fm_json_put(&rc, config, "alpha_pattern", fm_json_ref(others));
    }
    FM_THEN(rc, src_put_json(l->src, ROOT "/adapter_config.json", config, FM_JSON_PRETTY));
    fm_json_free(others);
    fm_json_free(config);
    return rc;
}

static fm_status read_fields(lora *l)
{
    fm_span type = {NULL, 0};
    bool found = false;

    if (fm_gguf_opaque(l->g))
        return fm_fail(FM_EUNSUPPORTED, "%s: %s", fm_gguf_what(l->g), fm_gguf_opaque(l->g));
    FM_TRY(fm_gguf_str(l->g, "adapter.type", &type, &found));
    if (!found || !fm_span_eq_str(type, "lora"))
        return bad(l, FM_EUNSUPPORTED, "adapter.type", "is not 'lora'");
    FM_TRY(fm_gguf_f64(l->g, "adapter.lora.alpha", &l->alpha, &found));
    if (!isfinite(l->alpha))
        return bad(l, FM_ECORRUPT, "adapter.lora.alpha", "is no number");
    if (fm_gguf_get(l->g, "adapter.alora.invocation_tokens"))
        return bad(l, FM_EUNSUPPORTED, "adapter.alora.invocation_tokens",
                   "is set: aLoRA does not run here");
    return fm_gguf_count(l->g) > 0 ? FM_OK : bad(l, FM_ECORRUPT, "adapter", "has no tensors");
}

fm_status gguf_open_lora(fm_source *src, src_file *f, const fm_gguf *g)
{
    lora l = {
        .src = src, .f = f, .g = g, .ranks = fm_json_new_object(), .kinds = fm_json_new_object()};
    fm_status rc = l.ranks && l.kinds ? FM_OK : FM_ENOMEM;

    src->root = ROOT;
    FM_THEN(rc, read_fields(&l));
    FM_THEN(rc, read_parent(&l));
    FM_THEN(rc, add_file(&l));
    FM_THEN(rc, put_config(&l));
    fm_json_free(l.kinds);
    fm_json_free(l.ranks);
    return rc;
}
