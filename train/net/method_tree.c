/* method_tree.c - the adapters in a tree: find them and read their tensors. */
#include "train/net/method.h"

#include "store/base/mem.h"

#include <stdio.h>
#include <string.h>

fm_status fmt_top_adapter(fm_buf *prefix, const fm_tree *tree)
{
    size_t begin = 0;
    size_t end = 0;
    int best = -1;

    fm_buf_clear(prefix);
    fm_tree_range(tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const char *path = fm_tree_at(tree, i)->path + strlen("adapters/");
        const char *slash = strchr(path, '/');
        int number = 0;
        for (const char *c = path; *c >= '0' && *c <= '9' && number < 100000; c++)
            number = number * 10 + (*c - '0');
        if (!slash || number <= best)
            continue;
        best = number;
        fm_buf_clear(prefix);
        fm_buf_str(prefix, "adapters/");
        fm_buf_append(prefix, path, (size_t)(slash - path) + 1);
    }
    return fm_buf_ok(prefix);
}

void fmt_unwrap(char *out, size_t room, const char *name)
{
    static const char *const wraps[] = {".base_layer.", ".ln_tuning_layers."};

    (void)snprintf(out, room, "%s", name);
    for (size_t i = 0; i < FM_ARRAY_LEN(wraps); i++) {
        const size_t n = strlen(wraps[i]) - 1; /* a dot stays */
        char *w = strstr(out, wraps[i]);
        if (w)
            memmove(w, w + n, strlen(w + n) + 1);
    }
}

fm_status fmt_tree_without(fm_tree **out, const fm_tree *tree, const char *prefix)
{
    const char *const drop[] = {prefix, "tokenizer/"};
    fm_status rc = fm_tree_copy(out, tree);

    for (size_t k = 0; k < FM_ARRAY_LEN(drop) && rc == FM_OK; k++) {
        size_t begin = 0;
        size_t end = 0;
        fm_tree_range(*out, drop[k], &begin, &end);
        while (end > begin && rc == FM_OK) {
            char *path = fm_strdup(fm_tree_at(*out, --end)->path);
            rc = path ? fm_tree_remove(*out, path) : FM_ENOMEM;
            fm_free(path);
        }
    }
    if (rc < 0) {
        fm_tree_free(*out);
        *out = NULL;
    }
    return rc;
}

static const fm_entry *entry_named(const fm_tree *tree, const char *prefix, const char *name)
{
    size_t begin = 0;
    size_t end = 0;

    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_TENSOR && strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

/* PEFT's first versions put ".weight" behind a magnitude's name. */
static const fm_entry *entry_called(const fm_tree *tree, const char *prefix, const char *name)
{
    const fm_entry *e = entry_named(tree, prefix, name);
    char old[FMT_MODULE_BYTES + 128];

    if (e || !strstr(name, ".lora_magnitude_vector"))
        return e;
    (void)snprintf(old, sizeof(old), "%s.weight", name);
    return entry_named(tree, prefix, old);
}

fm_status fmt_params_load(fmt_params *ps, const fm_tree *tree, const fm_provider *p,
                          const char *prefix, bool need_all)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < ps->count && rc == FM_OK; i++) {
        const fm_entry *e = entry_called(tree, prefix, ps->item[i].name);
        float *host = NULL;
        if (!e && !need_all)
            continue;
        if (!e)
            return fm_fail(FM_EBASE, "%s is missing", ps->item[i].name);
        if (!fm_shape_eq(&e->shape, &ps->item[i].shape))
            return fm_fail(FM_EBASE, "%s has another shape than its module needs", e->name);
        rc = fmt_read_f32(&host, p, e);
        FM_THEN(rc, fmt_params_put(ps, (int32_t)i, host));
        fm_free(host);
    }
    return rc;
}

/* Whether two names are equal without ".base_layer", PEFT's mark of wrapped modules. */
static bool same_unwrapped(const char *a, const char *b)
{
    static const char wrap[] = ".base_layer.";
    const char *wa = strstr(a, wrap);
    const char *wb = strstr(b, wrap);
    size_t na = wa ? (size_t)(wa - a) : strlen(a);
    size_t nb = wb ? (size_t)(wb - b) : strlen(b);
    const char *ta = wa ? wa + sizeof(wrap) - 2 : a + na;
    const char *tb = wb ? wb + sizeof(wrap) - 2 : b + nb;

    if (!wa && !wb)
        return strcmp(a, b) == 0;
    if (wa && wb)
        return na == nb && memcmp(a, b, na) == 0 && strcmp(ta, tb) == 0;
    const char *whole = wa ? b : a;
    size_t n = wa ? na : nb;
    return strncmp(whole, wa ? a : b, n) == 0 && strcmp(whole + n, wa ? ta : tb) == 0;
}

static const fm_entry *entry_like(const fm_tree *tree, const char *prefix, const char *peft)
{
    size_t skip = strlen(FMT_PEFT_PREFIX);
    size_t begin = 0;
    size_t end = 0;

    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_TENSOR && strncmp(e->name, FMT_PEFT_PREFIX, skip) == 0 &&
            same_unwrapped(e->name + skip, peft))
            return e;
    }
    return NULL;
}

const fm_entry *fmt_base_entry(const fmt_net *net, const fm_tree *parent, const char *name)
{
    const fm_entry *best = NULL;
    char peft[FMT_MODULE_BYTES + 16];
    char head[64];

    fmt_peft_name(net, name, peft, sizeof(peft));
    for (uint32_t n = 0;; n++) {
        char prefix[32];
        size_t begin = 0;
        size_t end = 0;
        (void)snprintf(prefix, sizeof(prefix), "adapters/%u-", n);
        fm_tree_range(parent, prefix, &begin, &end);
        if (begin == end)
            break;
        const fm_entry *e = entry_like(parent, prefix, peft);
        best = e ? e : best;
    }
    if (!best)
        best = fmt_find_tensor(parent, name);
    (void)snprintf(head, sizeof(head), "%s.weight", net->arch.head_name);
    if (!best && net->arch.tied && strcmp(name, head) == 0) {
        /* the embedding is the first parameter; the net of a last stage has no module of it */
        fm_param embed;
        if (fm_arch_param(&net->arch, 0, &embed))
            best = fmt_find_tensor(parent, embed.name);
    }
    return best;
}
