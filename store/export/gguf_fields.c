/* gguf_fields.c - config.json as GGUF's fields below the architecture's prefix.
 *
 * llama.cpp's code fixes much of an architecture, so a config that says otherwise is refused by
 * name: its file would load and answer nonsense. */
#include "store/export/gguf_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"

static fm_status refuse(const ggw_model *m, const char *field, const char *why)
{
    return fm_fail(
        FM_EUNSUPPORTED,
        "config.json: field '%s' %s in a GGUF of architecture %s; export with --format hf", field,
        why, m->arch->prefix);
}

static bool is_null(const fm_json *v)
{
    return fm_json_typeof(v) == FM_JSON_NULL;
}

static fm_status check_count(uint64_t *out, const fm_json *v, const char *field, uint64_t otherwise)
{
    const int64_t n = fm_json_int(v, (int64_t)otherwise);

    if (n < 1 || n > 1 << 30 || (!is_null(v) && !fm_json_is(v, FM_JSON_INT)))
        return fm_fail(FM_EUNSUPPORTED, "config.json: field '%s' is missing or out of range",
                       field);
    *out = (uint64_t)n;
    return FM_OK;
}

static fm_status count_of(uint64_t *out, const ggw_model *m, const char *field, uint64_t otherwise)
{
    return check_count(out, fm_json_get(m->config, field), field, otherwise);
}

static fm_status find_arch(ggw_model *m)
{
    const char *type = fm_json_cstr(fm_json_get(m->config, "model_type"), "");
    fm_buf known;

    FM_TRY(gguf_arch_of_config(&m->arch, m->config));
    if (m->arch)
        return FM_OK;
    fm_buf_init(&known, 0);
    gguf_arch_names(&known, true);
    fm_status rc = fm_fail(FM_EUNSUPPORTED,
                           "config.json: field 'model_type': '%.60s' cannot be written as GGUF (%s "
                           "can); export with --format hf",
                           type, fm_buf_ok(&known) == FM_OK ? fm_buf_cstr(&known) : "");
    fm_buf_release(&known);
    return rc;
}

/* The settings of rotation: transformers 5 has one object, by kind of layer where these differ,
 * older files have rope_scaling beside rope_theta. */
static const fm_json *rope_of(const ggw_model *m)
{
    const fm_json *rope = fm_json_get(m->config, "rope_parameters");

    if (!rope)
        return fm_json_get(m->config, "rope_scaling");
    return fm_json_get(rope, "full_attention") ? fm_json_get(rope, "full_attention") : rope;
}

static const fm_json *rope_get(const ggw_model *m, const char *field)
{
    const fm_json *v = fm_json_get(rope_of(m), field);
    return !is_null(v) ? v : fm_json_get(m->config, field);
}

static const char *rope_type(const ggw_model *m)
{
    const fm_json *named = fm_json_get(rope_of(m), "rope_type");
    return fm_json_cstr(named ? named : fm_json_get(rope_of(m), "type"), "default");
}

/* Hunyuan's rope type dynamic with an alpha is another base, whatever the length. */
static bool fixed_base(const ggw_model *m)
{
    return (m->arch->has & GGUF_ALPHA) && strcmp(rope_type(m), "dynamic") == 0 &&
           fm_json_real(rope_get(m, "alpha"), 0) > 0;
}

static double base_of(const ggw_model *m)
{
    const char *own = gguf_words_of(m->arch)->theta;
    const double dim = (double)m->head_dim, usual = m->arch->theta > 0 ? m->arch->theta : 10000;
    const double named = own ? fm_json_real(fm_json_get(m->config, own), usual) : usual;
    const double theta = fm_json_real(rope_get(m, "rope_theta"), named);

    return fixed_base(m)
               ? theta * fm_pow(fm_json_real(rope_get(m, "alpha"), 1), dim / FM_MAX(dim - 2, 1.0))
               : theta;
}

/* The settings of a text beside pictures are an object of their own, and count before those that
 * are beside it. */
static fm_status join_text(ggw_model *m, const fm_json *config)
{
    const fm_json *text = fm_json_get(config, "text_config");
    fm_status rc = FM_OK;

    m->config = config;
    if (!fm_json_is(text, FM_JSON_OBJECT))
        return FM_OK;
    m->joined = fm_json_copy(config);
    rc = m->joined ? FM_OK : FM_ENOMEM;
    for (void *it = fm_json_iter(text); rc == FM_OK && it; it = fm_json_next(text, it))
        rc = fm_json_set(m->joined, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    m->config = m->joined;
    return rc;
}

static const fm_json *setting_of(const ggw_model *m, const gguf_setting *s)
{
    if (!s->name)
        return NULL;
    const fm_json *v = fm_json_get(m->config, s->name);
    if (strcmp(s->name, "rope_local_base_freq") == 0 && is_null(v))
        v = fm_json_path(m->config, "rope_parameters.sliding_attention.rope_theta");
    if (strcmp(s->name, "num_experts") == 0 && is_null(v)) /* transformers 5 */
        v = fm_json_get(m->config, "num_local_experts");
    return v;
}

static fm_status check_fixed(const ggw_model *m)
{
    fm_buf key;

    fm_buf_init(&key, 0);
    fm_status rc = gguf_misfit(&key, m->arch, m->config);
    if (rc == FM_OK && key.len > 0)
        rc = refuse(m, fm_buf_cstr(&key), "has another value than llama.cpp fixes");
    fm_buf_release(&key);
    return rc;
}

static fm_status read_heads(ggw_model *m, const gguf_words *w)
{
    FM_TRY(count_of(&m->heads, m, w->heads, 0));
    m->kv_heads = m->heads;
    if (m->arch->has & GGUF_ONE_KV)
        m->kv_heads = 1;
    else if (w->kv_heads)
        FM_TRY(count_of(&m->kv_heads, m, w->kv_heads, m->heads));
    m->head_dim = m->arch->head_dim ? m->arch->head_dim : m->hidden / m->heads;
    if (w->head_dim)
        FM_TRY(count_of(&m->head_dim, m, w->head_dim, m->head_dim));
    if (m->heads % m->kv_heads != 0)
        return refuse(m, w->kv_heads, "must divide the heads");
    if ((m->arch->has & GGUF_SQUARE) && m->heads * m->head_dim != m->hidden)
        return refuse(m, w->head_dim ? w->head_dim : w->heads,
                      "must divide the hidden size evenly over the heads");
    if ((m->arch->has & GGUF_ALL_KV) && m->kv_heads != m->heads)
        return refuse(m, w->kv_heads, "must be as many as those of queries");
    return FM_OK;
}

static fm_status read_rotary(ggw_model *m)
{
    const fm_json *v = fm_json_get(m->config, "rotary_pct");
    const double dflt = m->arch->partial > 0 ? m->arch->partial : 1;
    const double part = fm_json_real(rope_get(m, "partial_rotary_factor"), fm_json_real(v, dflt));

    m->rotary = (uint64_t)(part * (double)m->head_dim + 1e-6);
    if (!(part > 0 && part <= 1) || m->rotary % 2 != 0 ||
        (part < 1 && !(m->arch->has & GGUF_PARTIAL)))
        return refuse(m, "partial_rotary_factor", "has no words");
    return FM_OK;
}

fm_status ggw_read_model(ggw_model *m, const fm_json *config)
{
    FM_TRY(join_text(m, config));
    FM_TRY(find_arch(m));
    FM_TRY(check_fixed(m));
    const gguf_words *w = gguf_words_of(m->arch);
    FM_TRY(count_of(&m->layers, m, w->layers, 0));
    FM_TRY(count_of(&m->hidden, m, w->hidden, 0));
    FM_TRY(read_heads(m, w));
    for (const gguf_setting *s = m->arch->settings; s && s->key; s++)
        if (strcmp(s->key, "expert_count") == 0)
            FM_TRY(check_count(&m->experts, setting_of(m, s), s->name, 0));
    if (m->arch->has & GGUF_PAD_OFFSET)
        m->skip =
            (uint64_t)FM_MAX(fm_json_int(fm_json_get(config, "pad_token_id"), 1) + 1, (int64_t)0);
    return read_rotary(m);
}

bool ggw_is_tied(const ggw_model *m)
{
    return fm_json_bool(fm_json_get(m->config, "tie_word_embeddings"), m->arch->has & GGUF_TIED);
}

void ggw_model_free(ggw_model *m)
{
    for (size_t i = 0; i < m->tables; i++)
        fm_free(m->table[i].v);
    fm_json_free(m->joined);
}

static void put_u32(ggw_fields *f, const ggw_model *m, const char *key, uint64_t v)
{
    char full[128];
    ggw_u32(f, gguf_key(m->arch, key, full), v);
}

static void put_f32(ggw_fields *f, const ggw_model *m, const char *key, double v)
{
    char full[128];
    ggw_f32(f, gguf_key(m->arch, key, full), v);
}

/* ---- what llama.cpp fixes ---- */

/* Lists of a word or number for each layer, which llama.cpp takes from a period. */
static fm_status check_layers(const ggw_model *m, bool window)
{
    const fm_json *types = fm_json_get(m->config, "layer_types"),
                  *ropes = fm_json_get(m->config, "no_rope_layers"),
                  *dense = fm_json_get(m->config, "mlp_only_layers");
    const uint64_t every = m->arch->full_every;

    for (uint64_t i = 0; !(m->arch->has & GGUF_PATTERN) && i < fm_json_count(types); i++) {
        const char *type = fm_json_cstr(fm_json_at(types, i), "");
        const bool slides = window && (every == 0 || (i + 1) % every != 0);
        if (strcmp(type, slides ? "sliding_attention" : "full_attention") != 0)
            return refuse(m, "layer_types", "has another order than llama.cpp fixes");
    }
    for (uint64_t i = 0; i < fm_json_count(ropes); i++)
        if (fm_json_int(fm_json_at(ropes, i), 1) != ((i + 1) % 4 != 0))
            return refuse(m, "no_rope_layers", "has another order than llama.cpp fixes");
    if (fm_json_count(dense) > 0)
        return refuse(m, "mlp_only_layers", "has no words");
    return FM_OK;
}

/* Which layers slide; without a list all but each so-many-th. */
static fm_status put_pattern(ggw_fields *f, const ggw_model *m)
{
    const fm_json *types = fm_json_get(m->config, "layer_types"),
                  *every = fm_json_get(m->config, "sliding_window_pattern");
    const int64_t period = fm_json_int(every, m->arch->full_every);
    char key[128];

    if (!is_null(types) && fm_json_count(types) != m->layers)
        return refuse(m, "layer_types", "must list each layer");
    if (is_null(types) && ((!is_null(every) && !fm_json_is(every, FM_JSON_INT)) || period < 1))
        return refuse(m, "sliding_window_pattern", "must be a number from 1");
    ggw_list(f, gguf_key(m->arch, "attention.sliding_window_pattern", key), FM_GGUF_BOOL,
             m->layers);
    for (uint64_t i = 0; i < m->layers; i++) {
        const char *type = fm_json_cstr(fm_json_at(types, i), "");
        const bool slides = is_null(types) ? (int64_t)(i + 1) % period != 0
                                           : strcmp(type, "sliding_attention") == 0;
        if (!is_null(types) && !slides && strcmp(type, "full_attention") != 0)
            return refuse(m, "layer_types", "has a value without words");
        fm_buf_u8(&f->bytes, slides);
    }
    return FM_OK;
}

static fm_status put_window(ggw_fields *f, const ggw_model *m)
{
    const bool llama = strcmp(m->arch->prefix, "llama") == 0;
    const bool off = !fm_json_bool(fm_json_get(m->config, "use_sliding_window"), true);
    const int64_t window = off ? 0 : fm_json_int(fm_json_get(m->config, "sliding_window"), 0);
    const uint32_t only = m->arch->slide_layers;

    if (window > 0 && !(m->arch->has & GGUF_WINDOW) && !llama)
        return refuse(m, "sliding_window", "has no words");
    if (only && (window > 0) != (m->layers == only))
        return refuse(m, "sliding_window", "is what llama.cpp expects in a model of 64 layers");
    if (window > 0 || (m->arch->has & GGUF_LONGROPE)) /* Phi: 0 says that there is none */
        put_u32(f, m, "attention.sliding_window", (uint64_t)FM_MAX(window, (int64_t)0));
    if (window > 0 && (m->arch->has & GGUF_PATTERN))
        FM_TRY(put_pattern(f, m));
    return check_layers(m, window > 0);
}

static fm_status check_scalar(const ggw_model *m)
{
    const fm_json *v = fm_json_get(m->config, "query_pre_attn_scalar");
    const uint64_t want = gguf_gemma_scalar(m->arch, m->layers, m->hidden / m->heads, m->head_dim);

    if (!(m->arch->has & GGUF_GEMMA) || is_null(v) || fm_json_real(v, 0) == (double)want)
        return FM_OK;
    return refuse(m, "query_pre_attn_scalar", "has another value than llama.cpp fixes");
}

/* ---- rotation ---- */

static fm_status add_table(ggw_table **out, ggw_model *m, const char *name, uint64_t count)
{
    ggw_table t = {name, fm_calloc(count, sizeof(float)), count};

    if (!t.v)
        return FM_ENOMEM;
    m->table[m->tables] = t;
    *out = &m->table[m->tables++];
    return FM_OK;
}

/* Llama 3: what each frequency is divided by. */
static fm_status llama3_table(ggw_model *m, double theta)
{
    const double pi = 3.14159265358979323846;
    const double factor = fm_json_real(rope_get(m, "factor"), 8);
    const double low = fm_json_real(rope_get(m, "low_freq_factor"), 1);
    const double high = fm_json_real(rope_get(m, "high_freq_factor"), 4);
    const double original = fm_json_real(rope_get(m, "original_max_position_embeddings"), 8192);
    ggw_table *t = NULL;

    if (!(m->arch->has & GGUF_FREQS))
        return refuse(m, "rope_type", "'llama3' has no words");
    FM_TRY(add_table(&t, m, "rope_freqs.weight", m->head_dim / 2));
    for (uint64_t i = 0; i < t->count; i++) {
        const double wave = 2 * pi * fm_pow(theta, (double)(2 * i) / (double)m->head_dim);
        const double smooth = (original / wave - low) / (high - low);
        t->v[i] = (float)(wave < original / high  ? 1
                          : wave > original / low ? factor
                                                  : 1 / ((1 - smooth) / factor + smooth));
    }
    return FM_OK;
}

static fm_status longrope_table(ggw_model *m, const char *name, const char *field)
{
    const fm_json *list = rope_get(m, field);
    ggw_table *t = NULL;

    if (fm_json_count(list) != m->rotary / 2)
        return refuse(m, field, "does not have a factor for each pair that turns, as it must");
    FM_TRY(add_table(&t, m, name, m->rotary / 2));
    for (uint64_t i = 0; i < t->count; i++)
        t->v[i] = (float)fm_json_real(fm_json_at(list, i), 1);
    return FM_OK;
}

static fm_status put_longrope(ggw_fields *f, ggw_model *m, double context, double original)
{
    const double scale = context / original;
    const double by_length = scale > 1 ? sqrt(1 + fm_log(scale) / fm_log(original)) : 1;

    if (!(m->arch->has & GGUF_LONGROPE))
        return refuse(m, "rope_type", "'longrope' has no words");
    put_f32(f, m, "rope.scaling.attn_factor",
            fm_json_real(rope_get(m, "attention_factor"), by_length));
    FM_TRY(longrope_table(m, GGUF_FACTORS_LONG, "long_factor"));
    return longrope_table(m, GGUF_FACTORS_SHORT, "short_factor");
}

/* YaRN's further numbers: most architectures of llama.cpp take the usual ones, whatever the file
 * says. */
static fm_status put_yarn(ggw_fields *f, const ggw_model *m, double factor)
{
    const bool all = m->arch->has & GGUF_YARN;

    for (const gguf_setting *s = gguf_yarn; s->key; s++) {
        const fm_json *v = fm_json_get(rope_of(m), s->name);
        const bool attention = strcmp(s->name, "attention_factor") == 0;
        const double usual = attention ? 0.1 * fm_log(FM_MAX(factor, 1.0)) + 1 : s->dflt;
        if (is_null(v))
            continue;
        if ((!all || attention) && !(fabs(fm_json_real(v, 0) - usual) <= 1e-6 * usual))
            return refuse(m, s->name, "of YaRN has no words");
        put_f32(f, m, s->key, fm_json_real(v, 0));
    }
    const fm_json *mscale = fm_json_get(rope_of(m), "mscale");
    if (!is_null(mscale) && !(all && fm_json_real(mscale, 0) == 1))
        return refuse(m, "mscale", "of YaRN has no words");
    if (!is_null(fm_json_get(rope_of(m), "attn_factor")))
        return refuse(m, "attn_factor", "of YaRN has no words");
    return fm_json_bool(fm_json_get(rope_of(m), "truncate"), true)
               ? FM_OK
               : refuse(m, "truncate", "of YaRN has no words");
}

static fm_status put_scaling(ggw_fields *f, ggw_model *m, double theta, uint64_t context)
{
    const char *type = rope_type(m);
    const fm_json *length = rope_get(m, "original_max_position_embeddings");
    const double factor = fm_json_real(rope_get(m, "factor"), 0);
    const bool linear = strcmp(type, "linear") == 0, yarn = strcmp(type, "yarn") == 0;
    const bool phi = m->arch->has & GGUF_LONGROPE;
    const int64_t original = fm_json_int(length, phi ? 4096 : (int64_t)context);
    char key[128];

    if (original < 2)
        return refuse(m, "original_max_position_embeddings", "is out of range");
    if (phi || yarn)
        put_u32(f, m, "rope.scaling.original_context_length", (uint64_t)original);
    if (strcmp(type, "default") == 0 || fixed_base(m)) {
        if (m->arch->has & GGUF_SAYS_NONE)
            ggw_str(f, gguf_key(m->arch, "rope.scaling.type", key), fm_span_str("none"));
        return FM_OK;
    }
    if (strcmp(type, "llama3") == 0)
        return llama3_table(m, theta);
    if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0)
        return put_longrope(f, m, (double)context, (double)original);
    if (phi || (!linear && !yarn))
        return refuse(m, "rope_type", "has a value without words");
    if (!(factor > 0))
        return refuse(m, "factor", "of the rotation must be above 0");
    if (yarn)
        FM_TRY(put_yarn(f, m, factor));
    ggw_str(f, gguf_key(m->arch, "rope.scaling.type", key), fm_span_str(type));
    put_f32(f, m, "rope.scaling.factor", factor);
    return FM_OK;
}

/* ---- all ---- */

static void put_settings(ggw_fields *f, const ggw_model *m)
{
    char key[128];

    for (const gguf_setting *s = m->arch->settings; s && s->key; s++) {
        const fm_json *v = setting_of(m, s);
        gguf_key(m->arch, s->key, key);
        if (s->kind == GGUF_WORD)
            ggw_str(f, key, fm_span_str(s->name));
        else if (s->kind == GGUF_FALSE)
            ggw_bool(f, key, false);
        else if (is_null(v) && s->dflt == 0)
            continue;
        else if (s->kind == GGUF_INT)
            ggw_u32(f, key, (uint64_t)fm_json_int(v, (int64_t)s->dflt));
        else if (s->kind == GGUF_REAL)
            ggw_f32(f, key, fm_json_real(v, s->dflt));
        else
            ggw_bool(f, key, fm_json_bool(v, s->dflt != 0));
    }
}

/* llama.cpp wants the number of token types of every encoder. */
static fm_status put_types(ggw_fields *f, const ggw_model *m)
{
    uint64_t types = 1;

    if (m->arch->has & GGUF_TYPES)
        FM_TRY(count_of(&types, m, "type_vocab_size", 2));
    if (m->arch->has & GGUF_ENCODER)
        ggw_u32(f, "tokenizer.ggml.token_type_count", types);
    return FM_OK;
}

/* Where sliding layers have settings of their own, llama.cpp turns them by the others' base. */
static fm_status check_local(const ggw_model *m, double theta)
{
    const fm_json *slide = fm_json_path(m->config, "rope_parameters.sliding_attention");

    if (!(m->arch->has & GGUF_BY_TYPE))
        return FM_OK;
    if (fm_json_real(fm_json_get(slide, "rope_theta"), theta) != theta ||
        strcmp(fm_json_cstr(fm_json_get(slide, "rope_type"), "default"), "default") != 0)
        return refuse(m, "rope_parameters",
                      "has sliding layers that turn otherwise than the "
                      "others, which llama.cpp does not,");
    return FM_OK;
}

fm_status ggw_arch_fields(ggw_fields *f, ggw_model *m)
{
    const gguf_words *w = gguf_words_of(m->arch);
    const char *eps_name = m->arch->eps ? m->arch->eps : "rms_norm_eps";
    const double theta = base_of(m);
    const double eps = m->arch->fixed_eps > 0 ? m->arch->fixed_eps
                                              : fm_json_real(fm_json_get(m->config, eps_name), -1);
    uint64_t context = 0, inter = 0;
    FM_TRY(count_of(&context, m, w->positions, 0));
    if (m->skip >= context)
        return refuse(m, w->positions, "leaves no position behind the padding's number");
    FM_TRY(count_of(&inter, m, w->inter, m->arch->words ? 4 * m->hidden : 0));

    if (!(eps >= 0))
        return refuse(m, eps_name, "is missing, and must be written");
    if (!(theta > 0))
        return refuse(m, "rope_theta", "must be above 0");
    FM_TRY(check_scalar(m));
    FM_TRY(check_local(m, theta));
    put_u32(f, m, "block_count", m->layers);
    put_u32(f, m, "context_length", context - m->skip);
    put_u32(f, m, "embedding_length", m->hidden);
    put_u32(f, m, "feed_forward_length", inter);
    put_u32(f, m, "attention.head_count", m->heads);
    put_u32(f, m, "attention.head_count_kv", m->kv_heads);
    put_u32(f, m, "attention.key_length", m->head_dim);
    put_u32(f, m, "attention.value_length", m->head_dim);
    put_u32(f, m, "vocab_size", m->vocab);
    if (w->theta) {
        put_u32(f, m, "rope.dimension_count", m->rotary);
        put_f32(f, m, "rope.freq_base", theta);
    }
    put_f32(f, m, gguf_eps_key(m->arch), eps);
    put_settings(f, m);
    FM_TRY(put_types(f, m));
    if (!w->theta)
        return FM_OK;
    FM_TRY(put_window(f, m));
    return put_scaling(f, m, theta, context);
}
