/* config.c - every value that a training result depends on: defaults, key=value, JSON.
 *
 * One table drives all four directions, so that a field cannot be settable and yet be missing
 * from the recipe. */
#include "train/net/internal.h"

#include "store/base/mem.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum field_kind {
    KIND_U32,
    KIND_I32,
    KIND_U64,
    KIND_REAL,
    KIND_BOOL,
    KIND_TEXT,
    KIND_METHOD,
    KIND_OBJECTIVE,
    KIND_SCHEDULE,
    KIND_DTYPE
} field_kind;

typedef struct field {
    const char *key;
    field_kind kind;
    size_t at;
    size_t bytes; /* TEXT: capacity with the NUL */
    double min, max;
} field;

#define AT(member) offsetof(fm_train_config, member)
#define ROOM(member) sizeof(((fm_train_config *)NULL)->member)
#define BIG 4294967295.0

static const field fields[] = {
    {"method", KIND_METHOD, AT(method), 0, 0, 0},
    {"r", KIND_U32, AT(r), 0, 0, 4096},
    {"alpha", KIND_REAL, AT(alpha), 0, 1e-6, 1e6},
    {"rslora", KIND_BOOL, AT(rslora), 0, 0, 0},
    {"targets", KIND_TEXT, AT(targets), ROOM(targets), 0, 0},
    {"modules_to_save", KIND_TEXT, AT(modules_to_save), ROOM(modules_to_save), 0, 0},
    {"objective", KIND_OBJECTIVE, AT(objective), 0, 0, 0},
    {"dora", KIND_BOOL, AT(dora), 0, 0, 0},
    {"dropout", KIND_REAL, AT(dropout), 0, 0, 0.99},
    {"loraplus", KIND_REAL, AT(loraplus), 0, 1e-3, 1e3},
    {"exclude", KIND_TEXT, AT(exclude), ROOM(exclude), 0, 0},
    {"feedforward", KIND_TEXT, AT(feedforward), ROOM(feedforward), 0, 0},
    {"rank_pattern", KIND_TEXT, AT(rank_pattern), ROOM(rank_pattern), 0, 0},
    {"alpha_pattern", KIND_TEXT, AT(alpha_pattern), ROOM(alpha_pattern), 0, 0},
    {"layers", KIND_TEXT, AT(layers), ROOM(layers), 0, 0},
    {"bias", KIND_TEXT, AT(bias), ROOM(bias), 0, 0},
    {"freeze", KIND_TEXT, AT(freeze), ROOM(freeze), 0, 0},
    {"virtual_tokens", KIND_U32, AT(virtual_tokens), 0, 1, 4096},
    {"classes", KIND_U32, AT(classes), 0, 0, 65536},
    {"pooling", KIND_TEXT, AT(pooling), ROOM(pooling), 0, 0},
    {"temperature", KIND_REAL, AT(temperature), 0, 0, 1e3},
    {"symmetric", KIND_BOOL, AT(symmetric), 0, 0, 0},
    {"dpo_beta", KIND_REAL, AT(dpo_beta), 0, 1e-6, 1e3},
    {"distill_weight", KIND_REAL, AT(distill_weight), 0, 0, 1},
    {"packing", KIND_BOOL, AT(packing), 0, 0, 0},
    {"buckets", KIND_U32, AT(buckets), 0, 0, 65536},
    {"lr", KIND_REAL, AT(lr), 0, 0, 1e3},
    {"beta1", KIND_REAL, AT(beta1), 0, 0, 0.9999999},
    {"beta2", KIND_REAL, AT(beta2), 0, 0, 0.9999999},
    {"eps", KIND_REAL, AT(eps), 0, 1e-30, 1},
    {"weight_decay", KIND_REAL, AT(weight_decay), 0, 0, 1e3},
    {"clip", KIND_REAL, AT(clip), 0, 0, 1e9},
    {"schedule", KIND_SCHEDULE, AT(schedule), 0, 0, 0},
    {"warmup", KIND_U32, AT(warmup), 0, 0, BIG},
    {"steps", KIND_U32, AT(steps), 0, 0, BIG},
    {"epochs", KIND_REAL, AT(epochs), 0, 1e-6, 1e6},
    {"batch", KIND_U32, AT(batch), 0, 1, 65536},
    {"accumulate", KIND_U32, AT(accumulate), 0, 1, 65536},
    {"shards", KIND_U32, AT(shards), 0, 1, 256},
    {"max_tokens", KIND_U32, AT(max_tokens), 0, 2, 1048576},
    {"seed", KIND_U64, AT(seed), 0, 0, 0},
    {"dtype", KIND_DTYPE, AT(dtype), 0, 0, 0},
    {"answers_only", KIND_BOOL, AT(answers_only), 0, 0, 0},
    {"decompose_both", KIND_BOOL, AT(decompose_both), 0, 0, 0},
    {"decompose_factor", KIND_I32, AT(decompose_factor), 0, -1, 65536},
    {"oft_block_size", KIND_U32, AT(oft_block_size), 0, 0, 65536},
    {"coft", KIND_BOOL, AT(coft), 0, 0, 0},
    {"coft_eps", KIND_REAL, AT(coft_eps), 0, 1e-12, 1e6},
    {"block_share", KIND_BOOL, AT(block_share), 0, 0, 0},
    {"use_cayley_neumann", KIND_BOOL, AT(use_cayley_neumann), 0, 0, 0},
    {"num_cayley_neumann_terms", KIND_U32, AT(num_cayley_neumann_terms), 0, 1, 1000},
    {"boft_block_size", KIND_U32, AT(boft_block_size), 0, 0, 65536},
    {"boft_block_num", KIND_U32, AT(boft_block_num), 0, 0, 65536},
    {"boft_n_butterfly_factor", KIND_U32, AT(boft_n_butterfly_factor), 0, 1, 32},
    {"apply_GS", KIND_BOOL, AT(apply_GS), 0, 0, 0},
    {"init_weights", KIND_TEXT, AT(init_weights), ROOM(init_weights), 0, 0},
    {"mini_r", KIND_U32, AT(mini_r), 0, 1, 65536},
    {"n_frequency", KIND_U32, AT(n_frequency), 0, 1, BIG},
    {"scaling", KIND_REAL, AT(scaling), 0, -1e9, 1e9},
    {"random_loc_seed", KIND_U32, AT(random_loc_seed), 0, 0, BIG},
    {"projection_prng_key", KIND_U32, AT(projection_prng_key), 0, 0, BIG},
    {"d_initial", KIND_REAL, AT(d_initial), 0, -1e6, 1e6},
    {"init_r", KIND_U32, AT(init_r), 0, 1, 4096},
};

/* Fields that some methods read: the recipes of all others lack them, as they did before these
 * methods were there. */
#define OF(method) (1u << FM_METHOD_##method)
static const struct own_field {
    const char *key;
    uint32_t methods;
} own_fields[] = {
    {"decompose_both", OF(LOKR)},
    {"decompose_factor", OF(LOKR)},
    {"oft_block_size", OF(OFT)},
    {"coft", OF(OFT)},
    {"coft_eps", OF(OFT)},
    {"block_share", OF(OFT)},
    {"use_cayley_neumann", OF(OFT)},
    {"num_cayley_neumann_terms", OF(OFT)},
    {"boft_block_size", OF(BOFT)},
    {"boft_block_num", OF(BOFT)},
    {"boft_n_butterfly_factor", OF(BOFT)},
    {"apply_GS", OF(HRA)},
    {"init_weights", OF(MISS) | OF(FOURIERFT)},
    {"mini_r", OF(MISS)},
    {"n_frequency", OF(FOURIERFT)},
    {"scaling", OF(FOURIERFT)},
    {"random_loc_seed", OF(FOURIERFT)},
    {"projection_prng_key", OF(VERA)},
    {"d_initial", OF(VERA)},
    {"init_r", OF(ADALORA)},
};

static bool reads(fm_method m, const char *key)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(own_fields); i++)
        if (strcmp(own_fields[i].key, key) == 0)
            return own_fields[i].methods >> m & 1u;
    return true;
}

static const char *const method_names[] = {"lora",      "full",     "pretrain",  "ia3",    "prefix",
                                           "prompt",    "bitfit",   "ln_tuning", "loha",   "lokr",
                                           "oft",       "boft",     "hra",       "miss",   "shira",
                                           "fourierft", "randlora", "vera",      "adalora"};
static const char *const objective_names[] = {"next_token", "classify", "contrastive", "dpo",
                                              "distill"};
static const char *const schedule_names[] = {"constant", "linear", "cosine"};

/* PEFT's defaults of its other kinds. */
static void set_own_defaults(fm_train_config *c)
{
    c->decompose_factor = -1;
    c->oft_block_size = 32;
    c->coft_eps = 6e-5;
    c->use_cayley_neumann = true;
    c->num_cayley_neumann_terms = 5;
    c->boft_block_size = 4;
    c->boft_n_butterfly_factor = 1;
    c->mini_r = 1;
    c->n_frequency = 1000;
    c->scaling = 150.0;
    c->random_loc_seed = 777;
    c->d_initial = 0.1;
    c->init_r = 12;
    if (c->method == FM_METHOD_FOURIERFT)
        memcpy(c->init_weights, "false", sizeof("false"));
    if (c->method == FM_METHOD_MISS)
        memcpy(c->init_weights, "true", sizeof("true"));
    if (c->method >= FM_METHOD_LOHA) {
        c->lr = 1e-3;
        c->alpha = c->method == FM_METHOD_RANDLORA ? 640.0 : 8.0;
    }
    if (c->method == FM_METHOD_RANDLORA || c->method == FM_METHOD_SHIRA)
        c->r = 32;
    if (c->method == FM_METHOD_MISS)
        c->r = 64;
    if (c->method == FM_METHOD_VERA)
        c->r = 256;
    if (c->method == FM_METHOD_OFT)
        c->r = 0; /* oft_block_size says it */
}

fm_train_config fm_train_defaults(fm_method method)
{
    fm_train_config c = {.method = method,
                         .r = 8,
                         .alpha = 16.0,
                         .targets = "all-linear",
                         .loraplus = 1.0,
                         .bias = "none",
                         .virtual_tokens = 16,
                         .pooling = "auto",
                         .dpo_beta = 0.1,
                         .distill_weight = 0.5,
                         .lr = 2e-4,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .weight_decay = 0.01,
                         .clip = 1.0,
                         .schedule = FM_SCHEDULE_LINEAR,
                         .warmup = 0,
                         .steps = 0,
                         .epochs = 1.0,
                         .batch = 4,
                         .accumulate = 1,
                         .shards = 1,
                         .max_tokens = 512,
                         .seed = 0,
                         .dtype = FM_DTYPE_NONE,
                         .answers_only = true};
    set_own_defaults(&c);
    if (method == FM_METHOD_FULL)
        c.lr = 2e-5;
    if (method == FM_METHOD_IA3) {
        c.targets[0] = '\0'; /* empty: PEFT's modules of the family */
        c.lr = 3e-3;
    }
    if (method == FM_METHOD_PREFIX)
        c.lr = 1e-2;
    if (method == FM_METHOD_PROMPT)
        c.lr = 3e-2;
    if (method == FM_METHOD_BITFIT || method == FM_METHOD_NORMS)
        c.lr = 1e-3;
    if (method == FM_METHOD_NORMS)
        c.targets[0] = '\0';
    if (method == FM_METHOD_PRETRAIN) {
        c.lr = 1e-3;
        c.weight_decay = 0.1;
        c.schedule = FM_SCHEDULE_COSINE;
        c.answers_only = false;
    }
    return c;
}

static const field *find_field(const char *key)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(fields); i++)
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    return NULL;
}

static fm_status unknown_key(const char *key)
{
    char list[1024] = "";
    size_t len = 0;

    for (size_t i = 0; i < FM_ARRAY_LEN(fields); i++) {
        size_t n = strlen(fields[i].key);
        if (len + n + 3 > sizeof(list))
            break;
        if (len > 0) {
            memcpy(list + len, ", ", 2);
            len += 2;
        }
        memcpy(list + len, fields[i].key, n + 1);
        len += n;
    }
    return fm_fail(FM_EINVAL, "training option '%s' is unknown; there are: %s", key, list);
}

static fm_status parse_choice(int *out, const char *key, const char *value,
                              const char *const *names, size_t n)
{
    char list[256] = "";

    for (size_t i = 0; i < n; i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = (int)i;
            return FM_OK;
        }
        size_t len = strlen(list);
        size_t add = strlen(names[i]);
        if (len + add + 3 > sizeof(list))
            continue;
        if (len > 0) {
            memcpy(list + len, ", ", 2);
            len += 2;
        }
        memcpy(list + len, names[i], add + 1);
    }
    return fm_fail(FM_EINVAL, "training option %s: '%s' is none of %s", key, value, list);
}

/* r 0 leaves it to oft_block_size. */
static bool no_rank(const fm_train_config *c, const field *f, uint64_t v)
{
    return f->at == AT(r) && v == 0 && c->method != FM_METHOD_OFT;
}

static fm_status check_range(const field *f, double v)
{
    if (v >= f->min && v <= f->max)
        return FM_OK;
    return fm_fail(FM_EINVAL, "training option %s: %.9g is not between %.9g and %.9g", f->key, v,
                   f->min, f->max);
}

static fm_status parse_u64(uint64_t *out, const char *key, const char *value)
{
    char *end = NULL;

    errno = 0;
    unsigned long long v = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno)
        return fm_fail(FM_EINVAL, "training option %s: '%s' is no whole number from 0 up", key,
                       value);
    *out = v;
    return FM_OK;
}

static fm_status parse_real(double *out, const char *key, const char *value)
{
    char *end = NULL;
    double v = strtod(value, &end);

    if (end == value || *end || !isfinite(v))
        return fm_fail(FM_EINVAL, "training option %s: '%s' is no finite number", key, value);
    *out = v;
    return FM_OK;
}

static fm_status parse_bool(bool *out, const char *key, const char *value)
{
    if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
        return fm_fail(FM_EINVAL, "training option %s: '%s' is neither true nor false", key, value);
    *out = value[0] == 't';
    return FM_OK;
}

static fm_status set_signed(char *at, const field *f, const char *value)
{
    bool minus = value[0] == '-';
    uint64_t whole = 0;
    FM_TRY(parse_u64(&whole, f->key, value + minus));
    FM_TRY(check_range(f, minus ? -(double)whole : (double)whole));
    int32_t narrow = minus ? -(int32_t)whole : (int32_t)whole;

    memcpy(at, &narrow, sizeof(narrow));
    return FM_OK;
}

static fm_status set_number(fm_train_config *c, const field *f, const char *value)
{
    char *at = (char *)c + f->at;
    uint64_t whole = 0;
    double real = 0.0;
    if (f->kind == KIND_I32)
        return set_signed(at, f, value);
    FM_TRY(f->kind == KIND_REAL ? parse_real(&real, f->key, value)
                                : parse_u64(&whole, f->key, value));

    if (f->kind != KIND_REAL && no_rank(c, f, whole))
        return fm_fail(FM_EINVAL, "training option r: 0 is not between 1 and %.9g", f->max);
    if (f->kind != KIND_U64)
        FM_TRY(check_range(f, f->kind == KIND_REAL ? real : (double)whole));
    uint32_t narrow = (uint32_t)whole;
    if (f->kind == KIND_REAL)
        memcpy(at, &real, sizeof(real));
    else if (f->kind == KIND_U64)
        memcpy(at, &whole, sizeof(whole));
    else
        memcpy(at, &narrow, sizeof(narrow));
    return FM_OK;
}

static fm_status set_text(fm_train_config *c, const field *f, const char *value)
{
    size_t len = strlen(value);

    if (len >= f->bytes)
        return fm_fail(FM_ELIMIT, "training option %s: %zu bytes, the limit is %zu", f->key, len,
                       f->bytes - 1);
    memset((char *)c + f->at, 0, f->bytes);
    memcpy((char *)c + f->at, value, len);
    return FM_OK;
}

static const struct dtype_name {
    const char *name;
    fm_dtype dtype;
} dtype_names[] = {{"parent", FM_DTYPE_NONE},
                   {"f32", FM_F32},
                   {"bf16", FM_BF16},
                   {"F32", FM_F32},
                   {"BF16", FM_BF16}};

static fm_status set_dtype(fm_train_config *c, const char *value)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(dtype_names); i++)
        if (strcmp(value, dtype_names[i].name) == 0) {
            c->dtype = dtype_names[i].dtype;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL, "training option dtype: '%s' is none of parent, f32, bf16", value);
}

static const char *dtype_text(fm_dtype dtype)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(dtype_names); i++)
        if (dtype_names[i].dtype == dtype)
            return dtype_names[i].name;
    return ""; /* a value that no parser set: reading it back fails by name */
}

fm_status fm_train_config_set(fm_train_config *c, const char *key, const char *value)
{
    const field *f = find_field(key);
    int choice = 0;
    fm_status rc = FM_OK;

    if (!f)
        return unknown_key(key);
    switch (f->kind) {
    case KIND_U32:
    case KIND_I32:
    case KIND_U64:
    case KIND_REAL:
        return set_number(c, f, value);
    case KIND_BOOL: {
        bool v = false;
        rc = parse_bool(&v, key, value);
        if (rc == FM_OK)
            memcpy((char *)c + f->at, &v, sizeof(v));
        return rc;
    }
    case KIND_TEXT:
        return set_text(c, f, value);
    case KIND_DTYPE:
        return set_dtype(c, value);
    case KIND_METHOD:
        rc = parse_choice(&choice, key, value, method_names, FM_ARRAY_LEN(method_names));
        if (rc == FM_OK)
            c->method = (fm_method)choice;
        return rc;
    case KIND_OBJECTIVE:
        rc = parse_choice(&choice, key, value, objective_names, FM_ARRAY_LEN(objective_names));
        if (rc == FM_OK)
            c->objective = (fm_objective)choice;
        return rc;
    case KIND_SCHEDULE:
        rc = parse_choice(&choice, key, value, schedule_names, FM_ARRAY_LEN(schedule_names));
        if (rc == FM_OK)
            c->schedule = (fm_schedule)choice;
        return rc;
    }
    return FM_OK;
}

static fm_json *field_json(const fm_train_config *c, const field *f)
{
    const char *at = (const char *)c + f->at;
    uint32_t narrow = 0;
    uint64_t whole = 0;
    double real = 0.0;
    bool flag = false;

    switch (f->kind) {
    case KIND_U32:
        memcpy(&narrow, at, sizeof(narrow));
        return fm_json_new_int((int64_t)narrow);
    case KIND_I32:
        return fm_json_new_int(*(const int32_t *)(const void *)at);
    case KIND_U64: /* as text, since JSON integers have 63 bits here */
        memcpy(&whole, at, sizeof(whole));
        if (whole <= INT64_MAX)
            return fm_json_new_int((int64_t)whole);
        char *text = fm_asprintf("%llu", (unsigned long long)whole);
        fm_json *v = text ? fm_json_new_str(text) : NULL;
        fm_free(text);
        return v;
    case KIND_REAL:
        memcpy(&real, at, sizeof(real));
        return fm_json_new_real(real);
    case KIND_BOOL:
        memcpy(&flag, at, sizeof(flag));
        return fm_json_new_bool(flag);
    case KIND_TEXT:
        return fm_json_new_str(at);
    case KIND_METHOD:
        return fm_json_new_str(method_names[c->method]);
    case KIND_OBJECTIVE:
        return fm_json_new_str(objective_names[c->objective]);
    case KIND_SCHEDULE:
        return fm_json_new_str(schedule_names[c->schedule]);
    case KIND_DTYPE:
        return fm_json_new_str(dtype_text(c->dtype));
    }
    return NULL;
}

fm_json *fm_train_config_json(const fm_train_config *c)
{
    fm_json *o = fm_json_new_object();

    for (size_t i = 0; o && i < FM_ARRAY_LEN(fields); i++) {
        if (fields[i].at == AT(shards) && c->shards == 1)
            continue; /* leaves older recipes, which lack this setting, as they are */
        if (!reads(c->method, fields[i].key))
            continue;
        if (fm_json_set(o, fields[i].key, field_json(c, &fields[i])) < 0) {
            fm_json_free(o);
            return NULL;
        }
    }
    return o;
}

/* A JSON scalar as the text that --set would pass, so that one parser checks both. */
static fm_status scalar_text(fm_buf *out, const fm_json *v, const char *key, const char *what)
{
    fm_buf_clear(out);
    if (fm_json_is(v, FM_JSON_STRING))
        fm_buf_str(out, fm_json_cstr(v, ""));
    else if (fm_json_is(v, FM_JSON_INT))
        fm_buf_printf(out, "%lld", (long long)fm_json_int(v, 0));
    else if (fm_json_is(v, FM_JSON_REAL))
        fm_buf_printf(out, "%.17g", fm_json_real(v, 0));
    else if (fm_json_is(v, FM_JSON_BOOL))
        fm_buf_str(out, fm_json_bool(v, false) ? "true" : "false");
    else
        return fm_fail(FM_EINVAL, "%s: training option %s must be a number, text, true or false",
                       what, key);
    return fm_buf_ok(out);
}

fm_status fm_train_config_from_json(fm_train_config *c, const fm_json *v, const char *what)
{
    fm_buf text;
    fm_status rc = FM_OK;
    int method = FM_METHOD_LORA;
    const char *name = fm_json_cstr(fm_json_get(v, "method"), "lora");

    *c = fm_train_defaults(FM_METHOD_LORA);
    if (!fm_json_is(v, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: the training options must be an object", what);
    rc = parse_choice(&method, "method", name, method_names, FM_ARRAY_LEN(method_names));
    if (rc < 0)
        return fm_error_prefix(rc, "%s", what);
    *c = fm_train_defaults((fm_method)method);
    fm_buf_init(&text, 4096);
    for (void *it = fm_json_iter(v); it && rc == FM_OK; it = fm_json_next(v, it)) {
        const char *key = fm_json_iter_key(it);
        rc = scalar_text(&text, fm_json_iter_value(it), key, what);
        if (rc == FM_OK) {
            rc = fm_train_config_set(c, key, fm_buf_cstr(&text));
            if (rc < 0)
                rc = fm_error_prefix(rc, "%s", what);
        }
    }
    fm_buf_release(&text);
    return rc;
}

static const field *misplaced(const fm_train_config *c, uint32_t *methods)
{
    fm_train_config usual = fm_train_defaults(c->method);

    for (size_t i = 0; i < FM_ARRAY_LEN(own_fields); i++) {
        const field *f = find_field(own_fields[i].key);
        if (!f)
            continue;
        const char *a = (const char *)c + f->at, *b = (const char *)&usual + f->at;
        size_t n = f->kind == KIND_TEXT   ? f->bytes
                   : f->kind == KIND_BOOL ? sizeof(bool)
                   : f->kind == KIND_REAL ? sizeof(double)
                                          : sizeof(uint32_t);
        *methods = own_fields[i].methods;
        if (!reads(c->method, f->key) && memcmp(a, b, n) != 0)
            return f;
    }
    return NULL;
}

fm_status fmt_config_check(const fm_train_config *c, const char *name)
{
    uint32_t methods = 0;
    const field *f = misplaced(c, &methods);
    char list[128] = "";

    for (size_t m = 0; f && m < FM_ARRAY_LEN(method_names); m++) {
        size_t len = strlen(list), add = strlen(method_names[m]);
        if (!(methods >> m & 1u) || len + add + 3 > sizeof(list))
            continue;
        memcpy(list + len, ", ", 3);
        memcpy(list + len + (len > 0 ? 2 : 0), method_names[m], add + 1);
    }
    return f ? fm_fail(FM_EINVAL, "%s: training option %s goes with method %s", name, f->key, list)
             : FM_OK;
}

bool fmt_config_has(const fm_train_config *c, const char *key)
{
    return find_field(key) && reads(c->method, key);
}

fm_json *fmt_config_value(const fm_train_config *c, const char *key)
{
    const field *f = reads(c->method, key) ? find_field(key) : NULL;

    return f ? field_json(c, f) : NULL;
}
