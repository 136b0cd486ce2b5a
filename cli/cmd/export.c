/* export.c - fmstore export: writes a version as files for other tools. */
#include <pthread.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/export.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"
#include "store/source.h"

/* The store's provider, which counts the bytes read. Several threads read at once. */
typedef struct watched {
    fm_provider from;
    pthread_mutex_t mutex;
    out_bar bar;
    uint64_t done, total;
} watched;

static fm_status watch(watched *w, fm_status rc, uint64_t bytes)
{
    if (rc != FM_OK)
        return rc;
    if (cli_interrupted)
        return fm_fail(FM_ECANCELLED, "stopped; nothing was left behind");
    pthread_mutex_lock(&w->mutex);
    w->done += bytes;
    out_bar_at(&w->bar, w->done, w->total);
    pthread_mutex_unlock(&w->mutex);
    return FM_OK;
}

static fm_status watched_read(void *ctx, const fm_entry *e, void *dst)
{
    watched *w = ctx;
    return watch(w, w->from.read(w->from.ctx, e, dst), e->bytes);
}

static fm_status watched_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                               void *dst, unsigned flags)
{
    watched *w = ctx;
    return watch(w, w->from.range(w->from.ctx, e, offset, bytes, dst, flags), bytes);
}

static fm_status watched_place(void *ctx, const fm_entry *e, fm_file_part *out)
{
    watched *w = ctx;
    return watch(w, w->from.place(w->from.ctx, e, out), out->path ? e->bytes : 0);
}

static fm_status export_watched(cli *c, const fm_tree *tree, const char *dst,
                                const fm_view_opts *opts)
{
    watched w = {.from = fm_store_provider(fm_repo_store(c->repo))};
    fm_provider p = {
        .ctx = &w, .read = watched_read, .range = watched_range, .place = watched_place};
    for (size_t i = 0; i < fm_tree_count(tree); i++)
        if (fm_tree_at(tree, i)->kind != FM_ENTRY_FILE)
            w.total += fm_tree_at(tree, i)->bytes;
    pthread_mutex_init(&w.mutex, NULL);
    out_bar_begin(&w.bar, "writing");
    cli_catch_interrupts(true);
    fm_status rc = fm_export_as(tree, &p, dst, opts);
    out_progress_end();
    pthread_mutex_destroy(&w.mutex);
    return rc;
}

/* What an import left out does not come back, and that is told here too. */
static void tell_left_out(cli *c, const fm_tree *tree, const char *rev)
{
    fm_json *source = NULL;
    fm_buf text;
    const fm_entry *e = fm_tree_find(tree, "source/source.json");
    fm_buf_init(&text, 0);
    fm_status rc = e ? fm_ops_entry_bytes(c, e, &text) : FM_ENOTFOUND;
    FM_THEN(rc, fm_json_parse(&source, fm_buf_span(&text), e->path));
    const size_t count = fm_json_count(fm_json_get(source, "left_out"));
    if (count > 0)
        fprintf(
            stderr,
            "  note: import left out of what came in: %zu (fmstore cat %s:source/source.json names "
            "them under left_out)\n",
            count, rev);
    fm_json_free(source);
    fm_buf_release(&text);
}

static bool is_gguf_name(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* Takes --dtype: a plain type or for GGUF one of llama-quantize's mixes; `upper`: its name. */
static bool take_dtype(fm_view_opts *opts, char upper[8], const char *name)
{
    const size_t n = strlen(name);

    for (size_t i = 0; i < n && i < 7; i++)
        upper[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 32 : name[i]);
    if (n < 8 && opts->format == FM_EXPORT_GGUF && fm_gguf_mix_known(upper)) {
        opts->mix = upper;
        return true;
    }
    opts->dtype = fm_dtype_parse(upper, strlen(upper));
    return n < 8 && (opts->dtype == FM_F32 || opts->dtype == FM_BF16 || opts->dtype == FM_F16);
}

/* The Modelfile that goes beside the GGUF: its text, and its path in dst's folder. */
typedef struct beside {
    fm_buf text;
    char *path;
} beside;

/* Made before the export, so that a refusal leaves nothing. */
static fm_status make_modelfile(cli *c, beside *out, const fm_tree *tree, const char *rev,
                                const char *dst, bool lora)
{
    const char *name = fm_path_base(dst);
    const fm_modelfile_opts o = {.tree = tree,
                                 .what = rev,
                                 .model = lora ? "base.gguf" : name,
                                 .adapter = lora ? name : NULL};
    out->path = fm_asprintf("%.*sModelfile", (int)(name - dst), dst);
    if (!out->path)
        return FM_ENOMEM;
    if (fm_path_exists(out->path))
        return fm_fail(FM_EEXISTS, "%s: is there already; export into another folder", out->path);
    return fm_ops_modelfile(c, &o, &out->text);
}

/* ---- --verify ---- */

static void tell_figures(const char *what, const fm_verify_figures *f, const fm_verify_report *r)
{
    printf("  %-16s KL %.3g (most %.3g), best token %zu of %zu, greedy answers %zu of %zu\n", what,
           f->kl, f->kl_most, f->best, r->positions, f->answers, r->texts);
}

/* Writes the file under a name that says that nothing is known of it yet, and gives it its own once
 * it has passed. */
static fm_status export_verified(cli *c, const fm_tree *tree, const char *rev, const char *dst,
                                 const fm_view_opts *opts)
{
    const int stem = (int)(strlen(dst) - (is_gguf_name(dst) ? strlen(".gguf") : 0));
    char *path = fm_asprintf("%.*s.unverified%s", stem, dst, dst + stem);
    fm_verify_report r = {0};
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && fm_path_exists(dst))
        rc = fm_fail(FM_EEXISTS, "%s: is there already; export to a new path", dst);
    FM_THEN(rc, export_watched(c, tree, path, opts));
    FM_THEN(rc, fm_ops_verify(c, tree, rev, path, &r));
    if (r.compared) {
        tell_figures("the file", &r.file, &r);
        tell_figures("rounding alone", &r.rounding, &r);
        printf("  %-16s KL %.3g (most %.3g)\n", "limit", r.kl_limit, r.kl_most_limit);
    }
    FM_THEN(rc, fm_move_file(path, dst));
    fm_free(path);
    return rc;
}

int cmd_export(cli *c, int argc, char **argv)
{
    static const char *const names[] = {"source", "hf", "safetensors", "peft", "gguf", "gguf-lora"};
    static const fm_export_format formats[] = {FM_EXPORT_SOURCE,      FM_EXPORT_HF,
                                               FM_EXPORT_SAFETENSORS, FM_EXPORT_PEFT,
                                               FM_EXPORT_GGUF,        FM_EXPORT_GGUF_LORA};
    const char *args[2], *format = NULL, *dtype_name = NULL, *imatrix = NULL;
    bool modelfile = false, verify = false;
    size_t n, f;
    const opt_spec table[] = {
        {0, "format", OPT_STR, "F",
         "hf (default), safetensors, peft, gguf (default for DST.gguf), gguf-lora: adapters alone, "
         "or source: the bytes that came in",
         &format},
        {0, "dtype", OPT_STR, "D",
         "f32, bf16, f16; for gguf also q8_0, q6_k, q5_k_m, q4_k_m, ...: the file that "
         "llama-quantize makes of the f32 one; default: as stored",
         &dtype_name},
        {0, "imatrix", OPT_STR, "FILE",
         "quantize by an importance matrix, which llama-imatrix writes; with such a --dtype",
         &imatrix},
        {0, "modelfile", OPT_FLAG, NULL,
         "with gguf or gguf-lora: write an Ollama Modelfile beside it", &modelfile},
        {0, "verify", OPT_FLAG, NULL,
         "with these: open the file again and run it beside the version", &verify},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 2, 2, &n);
    if (code != CLI_GO_ON)
        return code;
    if (!format)
        format = is_gguf_name(args[1]) ? "gguf" : "hf";
    for (f = 0; f < FM_ARRAY_LEN(names) && strcmp(format, names[f]) != 0; f++)
        ;
    if (f == FM_ARRAY_LEN(names))
        return cli_usage_error(c,
                               "--format wants hf, safetensors, peft, gguf, gguf-lora or source, "
                               "got '%s'",
                               format);
    fm_view_opts opts = {.format = formats[f], .imatrix = imatrix};
    char upper[8] = {0};
    if (dtype_name && !take_dtype(&opts, upper, dtype_name))
        return cli_usage_error(c,
                               "--dtype wants f32, bf16 or f16; for gguf also a mix of "
                               "llama-quantize's: q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, "
                               "q4_k_s, q4_1, q4_0, q3_k_l, q3_k_m, q3_k_s, q2_k, q2_k_s, iq4_nl, "
                               "iq4_xs; got '%s'",
                               dtype_name);
    if (imatrix && !opts.mix)
        return cli_usage_error(c, "--imatrix goes with a --dtype of block types, as q4_k_m");
    const bool lora = formats[f] == FM_EXPORT_GGUF_LORA;
    if ((modelfile || verify) && !lora && formats[f] != FM_EXPORT_GGUF)
        return cli_usage_error(c, "%s wants --format gguf or gguf-lora",
                               verify ? "--verify" : "--modelfile");
    fm_oid oid;
    fm_tree *tree = NULL;
    beside b = {.path = NULL};
    fm_buf_init(&b.text, 0);
    fm_status rc = fm_ops_lease(c, false, "export");
    FM_THEN(rc, fm_ops_resolve(c, args[0], &oid, &tree));
    if (rc == FM_OK && modelfile)
        rc = make_modelfile(c, &b, tree, args[0], args[1], lora);
    FM_THEN(rc, verify ? export_verified(c, tree, args[0], args[1], &opts)
                       : export_watched(c, tree, args[1], &opts));
    if (rc == FM_OK && modelfile)
        rc = fm_write_file(b.path, b.text.data, b.text.len);
    if (rc == FM_OK && formats[f] == FM_EXPORT_SOURCE)
        tell_left_out(c, tree, args[0]);
    if (rc == FM_OK)
        printf("%s written to %s (%s)\n", args[0], args[1], format);
    fm_buf_release(&b.text);
    fm_free(b.path);
    fm_tree_free(tree);
    return cli_exit(rc);
}
