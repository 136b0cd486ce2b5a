/* adapted.c - see adapted.h: which steps are folded into weights, and the view's tree. */
#include "store/adapted.h"

#include <stdio.h>
#include <string.h>

#include "store/adapt/adapted_impl.h"
#include "store/base/mem.h"

/* ==== what is folded ==== */

static bool folds(const fm_adapted *v, const adt_step *s)
{
    if (s->op->flags & (v->use == FM_ADAPTED_RUN ? ADT_RUN : ADT_MERGE))
        return true;
    /* an export merges plain low-rank terms itself, which a recipe of the store can name */
    return v->use == FM_ADAPTED_MERGE && s->op->apply == adt_lora &&
           (s->turned || s->part[2] || s->part[3]);
}

static adt_weight *bias_beside(fm_adapted *v, const adt_weight *w, const adt_step *s)
{
    for (size_t i = 0; i < v->plan.count; i++)
        for (size_t k = 0; k < v->plan.weight[i].count; k++) {
            const adt_step *other = &v->plan.weight[i].step[k];
            if (&v->plan.weight[i] != w && other->place == s->place &&
                strcmp(other->of, ".bias") == 0 && strcmp(other->module, s->module) == 0)
                return &v->plan.weight[i];
        }
    return NULL;
}

/* A step that is folded into a weight is folded into the bias that it changes too. */
static void fold_bias(fm_adapted *v, const adt_weight *w)
{
    for (size_t i = 0; i < w->folded; i++) {
        const adt_op *op = w->step[i].op;
        if (op->apply != adt_lora && op->apply != adt_ia3) /* no other changes a bias */
            continue;
        adt_weight *bias = bias_beside(v, w, &w->step[i]);
        for (size_t k = 0; bias && k < bias->count; k++)
            if (bias->step[k].place == w->step[i].place)
                bias->folded = FM_MAX(bias->folded, k + 1);
    }
}

/* An IA3 scales a bias that is there; a bias that a LoRA adds needs one to be added to. */
static fm_status check_folded(const adt_weight *w)
{
    if (w->folded && w->base && !fm_dtype_get(w->base->dtype)->is_float)
        return fm_fail(FM_EUNSUPPORTED, "tensor '%s' is %s, which no adapter can change", w->name,
                       fm_dtype_get(w->base->dtype)->name);
    for (size_t i = 0; !w->base && i < w->folded; i++)
        if (w->step[i].op == &adt_op_bias_add)
            return fm_fail(FM_EUNSUPPORTED,
                           "adapter module '%s' has a lora_bias and the model's module has no "
                           "bias: it cannot be merged",
                           w->step[i].module);
    return FM_OK;
}

static fm_status choose(fm_adapted *v)
{
    for (size_t i = 0; i < v->plan.count; i++) {
        adt_weight *w = &v->plan.weight[i];
        for (size_t k = 0; k < w->count; k++)
            if (folds(v, &w->step[k])) {
                w->folded = k + 1;
                w->beside = w->beside || w->step[k].op->flags & ADT_SAVE;
            }
    }
    for (size_t i = 0; i < v->plan.count; i++) {
        adt_weight *w = &v->plan.weight[i];
        for (size_t k = 0; k < w->folded; k++)
            if (w->step[k].op->flags & ADT_TERM)
                FM_TRY(adt_fit(&v->plan, w, &w->step[k]));
        fold_bias(v, w);
    }
    for (size_t i = 0; i < v->plan.count; i++)
        FM_TRY(check_folded(&v->plan.weight[i]));
    return FM_OK;
}

static bool ranks(const fm_adapted *v, const adt_weight *w, size_t step)
{
    return v->use == FM_ADAPTED_RUN && step >= w->folded && w->step[step].op->flags & ADT_RANK;
}

/* Whether the place looks in the view as it does in the tree. */
static bool stays(const fm_adapted *v, size_t place)
{
    if (!v->plan.config[place]) /* it is kept and not computed */
        return true;
    for (size_t i = 0; i < v->plan.count; i++)
        for (size_t k = 0; k < v->plan.weight[i].folded; k++)
            if (v->plan.weight[i].step[k].place == place)
                return false;
    return adt_native(v->plan.place[place].kind);
}

/* ==== ids ==== */

static fm_status hash_step(fm_hasher *h, const adt_step *s)
{
    const uint8_t turned = s->turned;

    FM_TRY(fm_hasher_update(h, s->op->name, strlen(s->op->name) + 1));
    FM_TRY(fm_hasher_update(h, &turned, 1));
    for (size_t i = 0; i < ADT_PARTS; i++) {
        const uint8_t there = s->part[i] != NULL;
        FM_TRY(fm_hasher_update(h, &there, 1));
        if (there)
            FM_TRY(fm_hasher_update(h, s->part[i]->id.b, sizeof s->part[i]->id.b));
    }
    for (size_t i = 0; i < ADT_NUMS + s->index_count; i++) {
        uint64_t bits = 0;
        uint8_t le[8];
        if (i < ADT_NUMS)
            memcpy(&bits, &s->num[i], sizeof bits);
        else
            bits = (uint64_t)s->index[i - ADT_NUMS];
        fm_put_u64(le, bits);
        FM_TRY(fm_hasher_update(h, le, sizeof le));
    }
    return FM_OK;
}

static fm_status id_of(fm_digest *out, const adt_made *m)
{
    fm_hasher *h = NULL;
    char text[96];
    const int n = snprintf(text, sizeof text, "fmstore adapted weight 1\n%s %d %d\n",
                           fm_dtype_get(m->dtype)->name, m->factor != NULL, m->b);
    fm_status rc = fm_hasher_new(&h);
    FM_THEN(rc, fm_hasher_update(h, text, (size_t)n));
    if (m->factor) { /* a factor is one of a shape */
        FM_THEN(rc, fm_hasher_update(h, m->shape.dim, 2 * sizeof m->shape.dim[0]));
        FM_THEN(rc, hash_step(h, m->factor));
    } else {
        FM_THEN(rc, fm_hasher_update(h, m->weight->base->id.b, sizeof m->weight->base->id.b));
        for (size_t i = 0; rc == FM_OK && i < m->weight->folded; i++)
            rc = hash_step(h, &m->weight->step[i]);
    }
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

/* ==== the tree ==== */

/* Keeps m, whose text it takes, as what gives the bytes of id. */
static fm_status keep(fm_adapted *v, const fm_digest *id, adt_made *m)
{
    FM_TRY(fm_grow(&v->made, &v->cap, v->count + 1, sizeof *v->made));
    adt_made *own = fm_malloc(sizeof *own);
    if (!own)
        return FM_ENOMEM;
    *own = *m;
    fm_buf_init(&m->text, 0);
    v->made[v->count++] = own;
    return fm_map_put(v->by_id, id->b, sizeof id->b, own, NULL);
}

static fm_status put_made(fm_adapted *v, const char *prefix, const char *name, const adt_made *m)
{
    adt_made own = *m;
    fm_buf path;
    fm_digest id;

    fm_buf_init(&own.text, 0);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = id_of(&id, m);
    FM_THEN(rc, fm_tensor_path(&path, prefix, name));
    FM_THEN(rc, fm_tree_put_tensor(v->own, fm_buf_cstr(&path), name, m->dtype, &m->shape, &id));
    FM_THEN(rc, keep(v, &id, &own));
    fm_buf_release(&path);
    return rc;
}

/* The kind under which what is left of a place stands in the view. */
static const char *kind_left(const fm_adapted *v, size_t place)
{
    const char *kind = v->plan.place[place].kind;
    if (strcmp(kind, "p_tuning") == 0)
        return "prompt";
    return v->use == FM_ADAPTED_RUN && adt_native(kind) ? kind : "lora";
}

/* "adapters/2-lora/tensors" */
static void room_of(char *out, size_t bytes, const fm_adapted *v, size_t place)
{
    (void)snprintf(out, bytes, "adapters/%u-%s/tensors", (unsigned)v->plan.place[place].number,
                   kind_left(v, place));
}

/* The type of a changed weight: rows of tokens keep the base's, as PEFT's do; else see the use. */
static fm_dtype dtype_of(const fm_adapted *v, const adt_weight *w)
{
    const fm_dtype_info *info = fm_dtype_get(w->base->dtype);
    bool rows = true;

    for (size_t i = 0; i < w->folded; i++)
        rows = rows && w->step[i].op->apply == adt_tokens;
    if (v->use == FM_ADAPTED_MERGE && v->dtype != FM_DTYPE_NONE)
        return v->dtype;
    return info->is_block || !info->is_float || !(rows || v->use == FM_ADAPTED_MERGE)
               ? FM_F32
               : w->base->dtype;
}

static fm_status put_weight(fm_adapted *v, const adt_weight *w)
{
    char room[96], name[FM_MAX_NAME_BYTES + 32];

    if (w->folded == 0 || !w->base)
        return FM_OK;
    const adt_made m = {.weight = w, .dtype = dtype_of(v, w), .shape = w->base->shape};
    room_of(room, sizeof room, v, w->step[w->folded - 1].place);
    (void)snprintf(name, sizeof name, "%s%s", w->beside ? "base_model.model." : "", w->name);
    return put_made(v, w->beside ? room : "tensors", name, &m);
}

static fm_status put_factors(fm_adapted *v, const adt_weight *w, const adt_step *s)
{
    char room[96], name[FM_MAX_NAME_BYTES + 48];
    const fm_shape *have = &w->base->shape;
    const uint64_t r = (uint64_t)s->num[0];

    if (r == 0)
        return FM_OK;
    room_of(room, sizeof room, v, s->place);
    for (int b = 0; b < 2; b++) {
        adt_made m = {.weight = w, .factor = s, .b = b, .dtype = FM_F32, .shape = {2, {0}}};
        m.shape.dim[0] = b ? have->dim[s->turned ? 1 : 0] : r;
        m.shape.dim[1] = b ? r : have->dim[s->turned ? 0 : 1];
        (void)snprintf(name, sizeof name, "base_model.model.%s.lora_%c.weight", s->module,
                       b ? 'B' : 'A');
        FM_TRY(put_made(v, room, name, &m));
    }
    return FM_OK;
}

static fm_status drop_parts(fm_adapted *v, const adt_step *s)
{
    for (size_t i = 0; i < ADT_PARTS; i++)
        if (s->part[i])
            FM_TRY(fm_map_put(v->dropped, s->part[i]->path, strlen(s->part[i]->path), v, NULL));
    return FM_OK;
}

/* ==== configs ==== */

/* A module's own rank: what adapter_config.json's patterns are for. */
static fm_status set_ranks(fm_json *config, const fm_adapted *v, size_t place)
{
    fm_json *rank = fm_json_new_object(), *alpha = fm_json_new_object();
    fm_status rc = rank && alpha ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < v->plan.count; i++)
        for (size_t k = 0; k < v->plan.weight[i].count; k++) {
            const adt_step *s = &v->plan.weight[i].step[k];
            if (s->place != place || !ranks(v, &v->plan.weight[i], k))
                continue;
            FM_THEN(rc, fm_json_set(rank, s->module, fm_json_new_int((int64_t)s->num[0])));
            FM_THEN(rc, fm_json_set(alpha, s->module, fm_json_new_int((int64_t)s->num[0])));
        }
    FM_THEN(rc, fm_json_set(config, "rank_pattern", fm_json_ref(rank)));
    FM_THEN(rc, fm_json_set(config, "alpha_pattern", fm_json_ref(alpha)));
    fm_json_free(rank);
    fm_json_free(alpha);
    return rc;
}

static fm_status copy_fields(fm_json *to, const fm_json *from, const char *const *field, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fm_json_get(from, field[i]))
            FM_TRY(fm_json_set(to, field[i], fm_json_ref(fm_json_get(from, field[i]))));
    return FM_OK;
}

static fm_status put_out(fm_json *config, const char *field)
{
    return fm_json_get(config, field) ? fm_json_set(config, field, fm_json_new_null()) : FM_OK;
}

static fm_status config_left(fm_json **out, const fm_adapted *v, size_t place)
{
    static const char *const virtual[] = {"num_virtual_tokens", "num_transformer_submodules",
                                          "num_layers", "num_attention_heads", "token_dim"};
    static const char *const tying[] = {"ensure_weight_tying", "modules_to_save", "fan_in_fan_out"};
    const fm_json *config = v->plan.config[place];
    const char *kind = kind_left(v, place);
    const bool own = strcmp(kind, v->plan.place[place].kind) == 0;
    fm_status rc = FM_OK;

    *out = own ? fm_json_copy(config) : fm_json_new_object();
    if (!*out)
        return FM_ENOMEM;
    if (own) { /* a LoRA whose rows of tokens, start or all factors are part of weights now */
        rc = put_out(*out, "trainable_token_indices");
        FM_THEN(rc, put_out(*out, "init_lora_weights"));
        if (v->use == FM_ADAPTED_MERGE)
            FM_THEN(rc, put_out(*out, "fan_in_fan_out"));
    } else if (strcmp(kind, "prompt") == 0) {
        FM_THEN(rc, fm_json_set(*out, "peft_type", fm_json_new_str("PROMPT_TUNING")));
        FM_THEN(rc, copy_fields(*out, config, virtual, FM_ARRAY_LEN(virtual)));
    } else {
        FM_THEN(rc, fm_json_set(*out, "peft_type", fm_json_new_str("LORA")));
        FM_THEN(rc, fm_json_set(*out, "r", fm_json_new_int(1)));
        FM_THEN(rc, fm_json_set(*out, "lora_alpha", fm_json_new_int(1)));
        FM_THEN(rc, copy_fields(*out, config, tying, v->use == FM_ADAPTED_RUN ? 3 : 2));
        FM_THEN(rc, set_ranks(*out, v, place));
    }
    return rc;
}

static fm_status put_config(fm_adapted *v, size_t place)
{
    char path[96];
    fm_json *config = NULL;
    adt_made m = {.weight = NULL};
    fm_digest id;

    fm_buf_init(&m.text, 0);
    (void)snprintf(path, sizeof path, "adapters/%u-%s/adapter_config.json",
                   (unsigned)v->plan.place[place].number, kind_left(v, place));
    fm_status rc = config_left(&config, v, place);
    FM_THEN(rc, fm_json_write(&m.text, config, FM_JSON_COMPACT));
    FM_THEN(rc, fm_buf_ok(&m.text));
    if (rc == FM_OK && m.text.len <= FM_INLINE_MAX_BYTES) {
        rc = fm_tree_put_file(v->own, path, fm_buf_span(&m.text));
    } else if (rc == FM_OK) {
        rc = fm_blob_id(&id, fm_buf_span(&m.text), NULL);
        FM_THEN(rc, fm_tree_put_blob(v->own, path, &id, m.text.len));
        FM_THEN(rc, keep(v, &id, &m));
    }
    fm_buf_release(&m.text);
    fm_json_free(config);
    return rc;
}

/* ==== making the view ==== */

/* A tensor that is left of a place keeps its name, but for what wraps a norm that was tuned. */
static fm_status put_left(fm_adapted *v, size_t place, const fm_entry *e)
{
    static const char wrap[] = ".ln_tuning_layers";
    char room[96], name[FM_MAX_NAME_BYTES + 1];
    fm_buf path;

    size_t part = 0;
    const adt_op *op =
        e->kind == FM_ENTRY_TENSOR ? adt_op_of(v->plan.place[place].kind, e->name, &part) : NULL;
    if (e->kind != FM_ENTRY_TENSOR || fm_map_has(v->dropped, e->path, strlen(e->path)) ||
        (op && !(op->flags & ADT_TERM)))
        return FM_OK;
    (void)snprintf(name, sizeof name, "%s", e->name);
    char *p = strstr(name, wrap);
    if (p)
        memmove(p, p + sizeof wrap - 1, strlen(p + sizeof wrap - 1) + 1);
    room_of(room, sizeof room, v, place);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, room, name);
    FM_THEN(rc, fm_tree_put_tensor(v->own, fm_buf_cstr(&path), name, e->dtype, &e->shape, &e->id));
    fm_buf_release(&path);
    return rc;
}

static fm_status put_place(fm_adapted *v, const fm_tree *tree, size_t place)
{
    char prefix[96];
    size_t begin, end;

    (void)snprintf(prefix, sizeof prefix, "%s/", v->plan.place[place].dir);
    fm_tree_range(tree, prefix, &begin, &end);
    FM_TRY(put_config(v, place));
    for (size_t i = begin; i < end; i++)
        FM_TRY(put_left(v, place, fm_tree_at(tree, i)));
    return FM_OK;
}

/* Whether e lies in the folder of an adapter that looks otherwise in the view. */
static bool is_moved(const fm_adapted *v, const bool *same, const fm_entry *e)
{
    if (strncmp(e->path, "adapters/", 9) != 0)
        return false;
    for (size_t i = 0; i < v->plan.places; i++) {
        const size_t n = strlen(v->plan.place[i].dir);
        if (!same[i] && strncmp(e->path, v->plan.place[i].dir, n) == 0 && e->path[n] == '/')
            return true;
    }
    return false;
}

/* The rest of the tree, in its order, so that nearly each entry is appended. */
static fm_status put_rest(fm_adapted *v, const fm_tree *tree)
{
    bool *same = fm_calloc(v->plan.places + 1, sizeof *same);
    fm_status rc = same ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < v->plan.places; i++)
        same[i] = stays(v, i);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++)
        if (!is_moved(v, same, fm_tree_at(tree, i)))
            rc = fm_tree_put_entry(v->own, fm_tree_at(tree, i));
    fm_free(same);
    return rc;
}

static fm_status put_all(fm_adapted *v, const fm_tree *tree)
{
    FM_TRY(fm_tree_new(&v->own));
    for (size_t i = 0; i < v->plan.count; i++)
        for (size_t k = 0; k < v->plan.weight[i].count; k++)
            if (k < v->plan.weight[i].folded || ranks(v, &v->plan.weight[i], k))
                FM_TRY(drop_parts(v, &v->plan.weight[i].step[k]));
    for (size_t i = 0; i < v->plan.places; i++)
        if (!stays(v, i))
            FM_TRY(put_place(v, tree, i));
    FM_TRY(put_rest(v, tree));
    for (size_t i = 0; i < v->plan.count; i++) {
        const adt_weight *w = &v->plan.weight[i];
        FM_TRY(put_weight(v, w));
        for (size_t k = 0; k < w->count; k++)
            if (ranks(v, w, k))
                FM_TRY(put_factors(v, w, &w->step[k]));
    }
    return FM_OK;
}

/* ==== life ==== */

static bool changes(const fm_adapted *v)
{
    for (size_t i = 0; i < v->plan.places; i++)
        if (!stays(v, i))
            return true;
    return false;
}

fm_status fm_adapted_open(fm_adapted **out, const fm_tree *tree, const fm_provider *p,
                          fm_adapted_use use, fm_dtype dtype, const char *what)
{
    fm_adapted *v = fm_calloc(1, sizeof *v);

    *out = NULL;
    if (!v)
        return FM_ENOMEM;
    *v = (fm_adapted){.tree = tree, .behind = p, .p = *p, .use = use, .dtype = dtype};
    (void)pthread_mutex_init(&v->lock, NULL);
    fm_status rc = adt_plan_make(&v->plan, tree, p, 0);
    FM_THEN(rc, choose(v));
    if (rc < 0)
        rc = fm_error_prefix(rc, "%s", what);
    if (rc == FM_OK && changes(v)) {
        rc = fm_map_new(&v->by_id);
        FM_THEN(rc, fm_map_new(&v->dropped));
        FM_THEN(rc, put_all(v, tree));
        v->tree = v->own;
        v->p = adt_provider(v);
    }
    if (rc < 0) {
        fm_adapted_close(v);
        return rc;
    }
    *out = v;
    return FM_OK;
}

void fm_adapted_close(fm_adapted *v)
{
    if (!v)
        return;
    for (size_t i = 0; i < v->count; i++) {
        fm_buf_release(&v->made[i]->text);
        fm_free(v->made[i]);
    }
    fm_free(v->made);
    fm_map_free(v->by_id);
    fm_map_free(v->dropped);
    fm_tree_free(v->own);
    fm_free(v->last_bytes);
    adt_plan_free(&v->plan);
    (void)pthread_mutex_destroy(&v->lock);
    fm_free(v);
}

const fm_tree *fm_adapted_tree(const fm_adapted *v)
{
    return v->tree;
}

const fm_provider *fm_adapted_provider(const fm_adapted *v)
{
    return &v->p;
}
