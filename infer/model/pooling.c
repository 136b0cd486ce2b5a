/* pooling.c - how a model's states become one vector.
 *
 * A sentence-transformers folder decides by modules.json, the pooling's config.json and
 * sentence_bert_config.json; Dense modules come between the pooling and the norm. Without these
 * files an encoder gets the normalised mean over its tokens (as MiniLM documents), a decoder its
 * last token's state. */
#include "infer/model/pooling.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "infer/model/model_bind.h"

#define MAX_SETTINGS_BYTES (1u << 20)
#define MAX_MODULES 16u

typedef struct from {
    const fm_tree *tree;
    const fm_provider *p;
    const char *what;
} from;

/* source/files/<name> of the tree as JSON; *out NULL where there is none. */
static fm_status read_settings(fm_json **out, const from *b, const char *name)
{
    char path[256];
    *out = NULL;
    int n = snprintf(path, sizeof(path), "source/files/%s", name);
    const fm_entry *e = n > 0 && (size_t)n < sizeof(path) ? fm_tree_find(b->tree, path) : NULL;
    if (!e || e->kind == FM_ENTRY_TENSOR)
        return FM_OK;
    fm_buf text;
    fm_buf_init(&text, MAX_SETTINGS_BYTES);
    fm_status rc = fm_entry_read(&text, b->p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), name));
    fm_buf_release(&text);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", b->what);
}

static FM_PRINTF(2, 3) void refuse(fmi_pooling *p, const char *format, ...)
{
    va_list args;
    if (p->refused[0])
        return;
    va_start(args, format);
    (void)vsnprintf(p->refused, sizeof(p->refused), format, args);
    va_end(args);
}

static void read_pooling(fmi_pooling *p, const fm_json *c)
{
    static const struct {
        const char *key, *name;
        fmi_pool_mode mode;
    } known[] = {{"pooling_mode_mean_tokens", "mean", FMI_POOL_MEAN},
                 {"pooling_mode_cls_token", "cls", FMI_POOL_FIRST},
                 {"pooling_mode_lasttoken", "lasttoken", FMI_POOL_LAST}};
    uint32_t on = 0;
    const char *name = fm_json_cstr(fm_json_get(c, "pooling_mode"), NULL);
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (name ? strcmp(name, known[i].name) == 0
                 : fm_json_bool(fm_json_get(c, known[i].key), false)) {
            p->mode = known[i].mode;
            on++;
        }
    for (void *it = fm_json_iter(c); it; it = fm_json_next(c, it)) {
        const char *key = fm_json_iter_key(it);
        bool is_known = strncmp(key, "pooling_mode_", 13) != 0;
        for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
            is_known = is_known || strcmp(known[i].key, key) == 0;
        if (!is_known && fm_json_bool(fm_json_iter_value(it), false))
            refuse(p, "%s is not supported; mean_tokens, cls_token, lasttoken are", key);
    }
    if (on != 1)
        refuse(p, "the pooling must be one of mean_tokens, cls_token, lasttoken");
}

static void read_dense(fmi_pooling *p, const fm_json *c, const char *path)
{
    fmi_dense d = {.biased = fm_json_bool(fm_json_get(c, "bias"), true)};
    int64_t in = fm_json_int(fm_json_get(c, "in_features"), 0);
    int64_t out = fm_json_int(fm_json_get(c, "out_features"), 0);
    const char *act = fm_json_cstr(fm_json_get(c, "activation_function"), "Tanh");
    const char *dot = strrchr(act, '.');
    act = dot ? dot + 1 : act;
    d.tanh = strcmp(act, "Tanh") == 0;
    if (!d.tanh && strcmp(act, "Identity") != 0)
        refuse(p, "modules.json: a Dense module's activation_function '%.60s' is not supported",
               act);
    if (in < 1 || in > 65536 || out < 1 || out > 65536 || strlen(path) >= sizeof(d.path))
        refuse(p, "modules.json: a Dense module of %lld inputs and %lld outputs is not supported",
               (long long)in, (long long)out);
    if (p->denses == FMI_DENSES)
        refuse(p, "modules.json: more than %u Dense modules are not supported", FMI_DENSES);
    if (p->normalise)
        refuse(p, "modules.json: a Dense module behind the norm is not supported");
    if (p->refused[0])
        return;
    d.in = (uint32_t)in;
    d.out = (uint32_t)out;
    memcpy(d.path, path, strlen(path) + 1);
    p->dense[p->denses++] = d;
}

/* Layers must follow from the model's states and end as wide as these. */
static void check_dense(fmi_pooling *p, uint32_t hidden)
{
    uint32_t wide = hidden;
    for (uint32_t i = 0; i < p->denses; i++) {
        if (p->dense[i].in != wide)
            refuse(p, "modules.json: '%s' takes %u numbers, and gets %u", p->dense[i].path,
                   p->dense[i].in, wide);
        wide = p->dense[i].out;
    }
    if (wide != hidden)
        refuse(p,
               "modules.json: Dense modules that end with %u numbers are not supported, only "
               "with as many as the model's states have (%u)",
               wide, hidden);
}

/* "sentence_transformers.models.Pooling" is "Pooling". */
static const char *class_of(const fm_json *module)
{
    const char *type = fm_json_cstr(fm_json_get(module, "type"), "");
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

static fm_status read_module(fmi_pooling *p, const from *b, const fm_json *module)
{
    const char *type = class_of(module), *path = fm_json_cstr(fm_json_get(module, "path"), "");
    fm_json *c = NULL;
    char file[200];
    if (strcmp(type, "Transformer") == 0)
        return FM_OK;
    if (strcmp(type, "Normalize") == 0) {
        p->normalise = true;
        return FM_OK;
    }
    bool dense = strcmp(type, "Dense") == 0;
    if (!dense && strcmp(type, "Pooling") != 0) {
        refuse(p, "modules.json: a module of type '%.60s' is not supported", type);
        return FM_OK;
    }
    (void)snprintf(file, sizeof(file), "%.150s/config.json", path);
    fm_status rc = read_settings(&c, b, file);
    if (rc == FM_OK && fm_json_is(c, FM_JSON_OBJECT) && dense)
        read_dense(p, c, path);
    else if (rc == FM_OK && fm_json_is(c, FM_JSON_OBJECT))
        read_pooling(p, c);
    else
        refuse(p, "modules.json names '%.100s', which the version lacks", file);
    fm_json_free(c);
    return rc;
}

static fm_status read_modules(fmi_pooling *p, const from *b)
{
    fm_json *all = NULL;
    fm_status rc = read_settings(&all, b, "modules.json");
    size_t n = fm_json_is(all, FM_JSON_ARRAY) ? fm_json_count(all) : 0;
    if (n > MAX_MODULES)
        refuse(p, "modules.json lists too many modules");
    if (n)
        p->normalise = false;
    for (size_t i = 0; rc == FM_OK && i < FM_MIN(n, (size_t)MAX_MODULES); i++)
        rc = read_module(p, b, fm_json_at(all, i));
    fm_json_free(all);
    return rc;
}

fm_status fmi_pooling_read(fmi_pooling *out, const fm_tree *tree, const fm_provider *p,
                           const fm_arch *a, const char *what)
{
    const from b = {tree, p, what};
    bool encoder = a->sw.encoder || a->sw.cross; /* of two stacks the encoder gives the states */
    fm_json *c = NULL;
    *out = (fmi_pooling){.mode = encoder ? FMI_POOL_MEAN : FMI_POOL_LAST,
                         .normalise = encoder,
                         .tokens_max = a->max_positions};
    fm_status rc = read_modules(out, &b);
    check_dense(out, a->hidden);
    FM_THEN(rc, read_settings(&c, &b, "sentence_bert_config.json"));
    int64_t most = fm_json_int(fm_json_get(c, "max_seq_length"), 0);
    if (most > 0 && most < out->tokens_max)
        out->tokens_max = (uint32_t)most;
    if (fm_json_bool(fm_json_get(c, "do_lower_case"), false))
        refuse(out, "sentence_bert_config.json: do_lower_case is not supported");
    fm_json_free(c);
    return rc;
}

fm_status fmi_pooling_bind(fmi_binder *b)
{
    fmi_pooling *p = &fmi_priv(b->m)->pooling;
    fm_status rc = fmi_pooling_read(p, b->tree, b->p, &b->m->arch, b->what);
    for (uint32_t i = 0; rc == FM_OK && !p->refused[0] && i < p->denses; i++)
        rc = fmi_dense_load(&p->dense[i], b->tree, b->p, b->what);
    return rc;
}
