/* steps.c - which formula applies to which weight of a tree, by the names of the adapters' tensors.
 *
 * A tensor "base_model.model.<module>.<part>" belongs to a step on "<module>.weight"; one without
 * such an ending is a whole parameter that replaces the base's. */
#include <stdio.h>
#include <string.h>

#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"

#define PREFIX "base_model.model."

/* ==== names ==== */

bool adt_native(const char *kind)
{
    static const char *const known[] = {"lora", "dora", "ia3", "prefix", "prompt"};
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(kind, known[i]) == 0)
            return true;
    return false;
}

static bool ends_with(const char *s, size_t n, const char *end)
{
    const size_t k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

const adt_op *adt_op_of(const char *kind, const char *name, size_t *part)
{
    const adt_op *best = NULL;
    const size_t n = strlen(name);
    size_t longest = 0;

    if (strcmp(kind, "dora") == 0)
        kind = "lora";
    for (size_t i = 0; i < adt_op_count; i++)
        for (size_t k = 0; strcmp(adt_ops[i].kind, kind) == 0 && k < ADT_PARTS; k++) {
            const char *end = adt_ops[i].part[k];
            if (!end || strlen(end) <= longest)
                continue;
            const bool is =
                *end == '/'
                    ? strncmp(name, "base_model.", 11) == 0 && strcmp(name + 11, end + 1) == 0
                    : ends_with(name, n, end) && name[n - strlen(end) - 1] == '.';
            if (!is)
                continue;
            best = &adt_ops[i];
            *part = k;
            longest = strlen(end);
        }
    return best;
}

static const char *without_prefix(const char *name)
{
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : name;
}

/* Cuts the first `middle` out of the text. */
static void cut_out(char *text, const char *middle)
{
    char *p = strstr(text, middle);
    if (p)
        memmove(p, p + strlen(middle), strlen(p + strlen(middle)) + 1);
}

/* ==== weights and their steps ==== */

static bool is_head(const char *name)
{
    static const char head[] = "lm_head.weight";
    const size_t n = strlen(name), k = sizeof head - 1;
    return n >= k && strcmp(name + n - k, head) == 0 && (n == k || name[n - k - 1] == '.');
}

/* The parameter that adapters call `name`; *out NULL: the base has none. A head, which may be the
 * embedding, stands beside the base's weights. A bias may be absent: base NULL. */
static fm_status weight_of(adt_weight **out, adt_plan *plan, const fm_tree *tree, const char *name)
{
    const fm_entry *base;

    *out = NULL;
    FM_TRY(adp_base_tensor(&base, tree, name));
    if (!base && !ends_with(name, strlen(name), ".bias"))
        return FM_OK;
    const char *own = base && !is_head(name) ? base->name : name;
    void *known = fm_map_get(plan->by_name, own, strlen(own));
    if (known) {
        *out = &plan->weight[(uintptr_t)known - 1];
        return FM_OK;
    }
    FM_TRY(fm_grow(&plan->weight, &plan->cap, plan->count + 1, sizeof *plan->weight));
    adt_weight *w = &plan->weight[plan->count];
    *w = (adt_weight){.name = fm_strdup(own), .base = base, .beside = is_head(name)};
    if (!w->name)
        return FM_ENOMEM;
    plan->count++;
    union {
        uintptr_t number;
        void *pointer;
    } value = {.number = plan->count};
    *out = w;
    return fm_map_put(plan->by_name, own, strlen(own), value.pointer, NULL);
}

/* The step of this formula, adapter and module; it is added where it is not there yet. */
static fm_status step_of(adt_step **out, adt_weight *w, const adt_op *op, size_t place,
                         const char *module, const char *of)
{
    for (size_t i = w->count; i-- > 0 && w->step[i].place == place;)
        if (w->step[i].op == op) {
            *out = &w->step[i];
            return FM_OK;
        }
    FM_TRY(fm_grow(&w->step, &w->cap, w->count + 1, sizeof *w->step));
    w->step[w->count] = (adt_step){.op = op, .place = place, .module = fm_strdup(module), .of = of};
    *out = &w->step[w->count];
    if (!w->step[w->count].module)
        return FM_ENOMEM;
    w->count++;
    return FM_OK;
}

/* part ADT_PARTS: the formula takes nothing of the tensor but its place. */
static fm_status add_part(adt_plan *plan, const fm_tree *tree, size_t place, const char *module,
                          const adt_op *op, const char *of, size_t part, const fm_entry *e)
{
    char name[FM_MAX_NAME_BYTES + 16];
    adt_weight *w = NULL;
    adt_step *s = NULL;

    (void)snprintf(name, sizeof name, "%s%s", module, of);
    FM_TRY(weight_of(&w, plan, tree, name));
    if (!w && adt_native(plan->place[place].kind))
        return FM_OK; /* the engine or the export says what is wrong */
    if (!w)
        return fm_fail(FM_EBASE, "adapter tensor '%s': the parent has no '%s'", e->name, name);
    FM_TRY(step_of(&s, w, op, place, module, of));
    if (part < ADT_PARTS)
        s->part[part] = e;
    return FM_OK;
}

/* The starts of a LoRA that change the weight before its factors are added. */
static const adt_op *start_of(const fm_json *config)
{
    const char *start = fm_json_cstr(fm_json_get(config, "init_lora_weights"), "");
    if (strcmp(start, "pissa") == 0)
        return &adt_op_pissa;
    return strcmp(start, "olora") == 0 || strcmp(start, "OLoRA") == 0 ? &adt_op_olora : NULL;
}

/* Whether both of a tied model's names for its embedding hold the same rows: one step is enough. */
static fm_status tied_twin(bool *twin, const fm_tree *tree, const char *module, const fm_entry *e)
{
    const fm_entry *head, *other;
    char name[FM_MAX_NAME_BYTES + 16];

    *twin = false;
    (void)snprintf(name, sizeof name, "%s.weight", module);
    if (!is_head(name))
        return FM_OK;
    FM_TRY(adp_base_tensor(&head, tree, name));
    if (!head || is_head(head->name))
        return FM_OK;
    *twin = true;
    const char *tail = strstr(e->path, "/tensors/");
    for (size_t i = 0; tail && i < fm_tree_count(tree); i++) {
        other = fm_tree_at(tree, i);
        if (strncmp(other->path, e->path, (size_t)(tail - e->path)) == 0 &&
            other->kind == FM_ENTRY_TENSOR && fm_digest_eq(&other->id, &e->id) && other != e)
            return FM_OK;
    }
    return fm_fail(FM_EUNSUPPORTED,
                   "adapter tensor '%s': rows of the head of a model whose head is its embedding",
                   e->name);
}

static fm_status add_formula(adt_plan *plan, const fm_tree *tree, size_t place, const adt_op *op,
                             size_t part, const fm_entry *e)
{
    char module[FM_MAX_NAME_BYTES + 1];
    const char *end = op->part[part];
    bool twin = false;

    (void)snprintf(module, sizeof module, "%s", without_prefix(e->name));
    module[strlen(module) - strlen(end) - 1] = '\0';
    if (op->apply == adt_tokens)
        FM_TRY(tied_twin(&twin, tree, module, e));
    if (twin)
        return FM_OK;
    if (op->apply == adt_lora && start_of(plan->config[place]) && part == 0)
        FM_TRY(add_part(plan, tree, place, module, start_of(plan->config[place]), ".weight",
                        ADT_PARTS, e));
    if (op->apply == adt_lora && strcmp(end, "lora_B.bias") == 0)
        return add_part(plan, tree, place, module, &adt_op_bias_add, ".bias", 0, e);
    FM_TRY(add_part(plan, tree, place, module, op, ".weight", part, e));
    if (op->apply == adt_ia3 && !(e->shape.rank == 2 && e->shape.dim[0] == 1))
        return add_part(plan, tree, place, module, &adt_op_bias_scale, ".bias", 0, e);
    return FM_OK;
}

/* A parameter that the base lacks (a classifier's head) is left to what reads it. */
static fm_status add_whole(adt_plan *plan, const fm_tree *tree, size_t place, const fm_entry *e)
{
    char name[FM_MAX_NAME_BYTES + 1];
    adt_weight *w = NULL;
    adt_step *s = NULL;

    (void)snprintf(name, sizeof name, "%s", without_prefix(e->name));
    cut_out(name, ".ln_tuning_layers");
    cut_out(name, ".base_layer");
    cut_out(name, ".token_adapter");
    FM_TRY(weight_of(&w, plan, tree, name));
    if (!w || !w->base || !fm_shape_eq(&w->base->shape, &e->shape))
        return FM_OK;
    FM_TRY(step_of(&s, w, &adt_op_whole, place, name, ""));
    s->part[0] = e;
    return FM_OK;
}

/* Tensors of the whole adapter, given to every step that wants them. */
static void share(adt_plan *plan, size_t place, const adt_op *op, size_t part, const fm_entry *e)
{
    for (size_t i = 0; i < plan->count; i++)
        for (size_t k = 0; k < plan->weight[i].count; k++) {
            adt_step *s = &plan->weight[i].step[k];
            if (s->place == place && s->op == op)
                s->part[part] = e;
        }
}

/* pass 0: whole parameters, which what is added stands on; 1: parts; 2: those of all modules. */
static fm_status read_place(adt_plan *plan, const fm_tree *tree, size_t place, int pass)
{
    char prefix[96];
    size_t begin, end, part = 0;

    (void)snprintf(prefix, sizeof prefix, "%s/tensors/", plan->place[place].dir);
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        FM_TRY(fm_entry_check_name(e));
        const adt_op *op = adt_op_of(plan->place[place].kind, e->name, &part);
        const bool shared = op && op->part[part][0] == '/';
        if (pass == 0 && !op)
            FM_TRY(add_whole(plan, tree, place, e));
        if (pass == 1 && op && !shared)
            FM_TRY(add_formula(plan, tree, place, op, part, e));
        if (pass == 2 && shared)
            share(plan, place, op, part, e);
    }
    return FM_OK;
}

/* ==== fit ==== */

fm_status adt_fit(adt_plan *plan, const adt_weight *w, adt_step *s)
{
    const bool bias = strcmp(s->of, ".bias") == 0;

    for (size_t i = 0; i < ADT_PARTS && s->op->part[i]; i++)
        if (!s->part[i] && !(s->op->optional >> i & 1))
            return fm_fail(FM_EBASE, "adapter module '%s' has no '%s'", s->module, s->op->part[i]);
    if (!w->base || s->op->flags & ADT_WHOLE)
        return FM_OK;
    const fm_shape *have = &w->base->shape;
    if (have->rank != (bias ? 1u : 2u))
        return fm_fail(FM_EBASE, "adapter module '%s': '%s' is no %s", s->module, w->name,
                       bias ? "vector" : "matrix");
    return s->op->fit(s, plan->config[s->place], have->dim[s->turned ? 1 : 0],
                      bias ? 1 : have->dim[s->turned ? 0 : 1]);
}

/* Terms of an engine are compared by it, or where they are folded. */
static fm_status fit_all(adt_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        for (size_t k = 0; k < plan->weight[i].count; k++) {
            adt_step *s = &plan->weight[i].step[k];
            s->turned = strcmp(s->of, ".weight") == 0 &&
                        fm_json_bool(fm_json_get(plan->config[s->place], "fan_in_fan_out"), false);
            if (!(s->op->flags & ADT_TERM))
                FM_TRY(adt_fit(plan, &plan->weight[i], s));
        }
    return FM_OK;
}

void adt_set_most(adt_step *s, uint64_t out, uint64_t in)
{
    enum { MOST_OUT = 2, MOST_IN = 3 };
    if (s->op->factor != adt_factor_vera || s->part[2])
        return;
    s->num[MOST_OUT] = (double)out;
    s->num[MOST_IN] = (double)in;
}

/* VeRA draws its projections for the greatest sizes of its modules. */
static void set_most(adt_plan *plan)
{
    for (size_t p = 0; p < plan->places; p++) {
        uint64_t out = 0, in = 0;
        for (int again = 0; again < 2; again++) /* the second time all are known */
            for (size_t i = 0; i < plan->count; i++)
                for (size_t k = 0; k < plan->weight[i].count; k++) {
                    adt_step *s = &plan->weight[i].step[k];
                    if (s->place != p || s->op->factor != adt_factor_vera || s->part[2])
                        continue;
                    const fm_shape *w = &plan->weight[i].base->shape;
                    out = FM_MAX(out, w->dim[s->turned ? 1 : 0]);
                    in = FM_MAX(in, w->dim[s->turned ? 0 : 1]);
                    adt_set_most(s, out, in);
                }
    }
}

fm_status adt_plan_make(adt_plan *out, const fm_tree *tree, const fm_provider *p, size_t first)
{
    memset(out, 0, sizeof *out);
    fm_status rc = fm_map_new(&out->by_name);
    FM_THEN(rc, adp_list(&out->place, &out->places, tree));
    if (rc == FM_OK && !(out->config = fm_calloc(out->places + 1, sizeof *out->config)))
        rc = FM_ENOMEM;
    for (size_t i = first; rc == FM_OK && i < out->places; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/adapter_config.json", out->place[i].dir);
        if (!fm_tree_find(tree, path))
            continue; /* what reads the adapter says so */
        rc = adp_config(&out->config[i], tree, p, &out->place[i]);
        FM_THEN(rc, fm_adapter_config_check(out->config[i], out->place[i].kind, out->place[i].dir));
        if (rc == FM_EUNSUPPORTED) { /* it is kept; what would compute it says so */
            fm_json_free(out->config[i]);
            out->config[i] = NULL;
            fm_error_clear();
            rc = FM_OK;
            continue;
        }
        for (int pass = 0; rc == FM_OK && pass < 3; pass++)
            rc = read_place(out, tree, i, pass);
    }
    FM_THEN(rc, fit_all(out));
    if (rc == FM_OK)
        set_most(out);
    else
        adt_plan_free(out);
    return rc;
}

void adt_plan_free(adt_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        for (size_t k = 0; k < plan->weight[i].count; k++) {
            fm_free(plan->weight[i].step[k].module);
            fm_free(plan->weight[i].step[k].index);
        }
        fm_free(plan->weight[i].step);
        fm_free(plan->weight[i].name);
    }
    for (size_t i = 0; plan->config && i < plan->places; i++)
        fm_json_free(plan->config[i]);
    fm_free(plan->weight);
    fm_free(plan->config);
    fm_free(plan->place);
    fm_map_free(plan->by_name);
    memset(plan, 0, sizeof *plan);
}
