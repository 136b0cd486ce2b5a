/* blame_damage.c - versions that training does not make: one tensor damaged, an adapter left out.
 */
#include "tests/bench/blame_bench.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/mem.h"

typedef struct damage {
    const char *module, *kind;
    double amount;
    uint64_t seed;
    const fm_entry *entry; /* that is damaged; borrowed from raw */
    fm_tree *parent, *raw;
    fm_oid parent_oid, raw_oid;
    uint64_t rows, cols;
    float *w;
} damage;

enum { STREAM_NOISE = 1, STREAM_ROWS, STREAM_HEAD };

/* The weight of the module that the step changed: of an adapter its B. */
static fm_status pick_entry(void *ctx, const fm_change *ch)
{
    damage *d = ctx;
    if (!ch->b || ch->b->kind != FM_ENTRY_TENSOR || !strstr(ch->b->name, d->module))
        return FM_OK;
    if (fm_ends_with(ch->b->name, "lora_B.weight") ||
        (!strstr(ch->b->name, "lora_") && fm_ends_with(ch->b->name, ".weight")))
        d->entry = ch->b;
    return FM_OK;
}

/* Of an adapter's young B at least what makes it a weight. */
static double rms(const damage *d)
{
    double sum = 0;
    for (uint64_t i = 0; i < d->rows * d->cols; i++)
        sum += (double)d->w[i] * (double)d->w[i];
    return fmax(sqrt(sum / (double)(d->rows * d->cols)),
                strstr(d->entry->name, "lora_") ? 0.01 : 0);
}

static void add_noise(damage *d, uint64_t col0, uint64_t cols, double size)
{
    for (uint64_t r = 0; r < d->rows; r++)
        for (uint64_t c = col0; c < col0 + cols; c++)
            d->w[r * d->cols + c] +=
                (float)(size * fm_rng_normal(d->seed, STREAM_NOISE, r * d->cols + c));
}

/* A share amount / 16 of the rows, picked by the seed. */
static uint64_t some_rows(const damage *d, uint32_t *order)
{
    fm_rng_permutation(order, (uint32_t)d->rows, d->seed, STREAM_ROWS);
    return FM_MAX((uint64_t)2, (uint64_t)((double)d->rows * fmin(d->amount, 16) / 16));
}

static void permute_rows(damage *d, const uint32_t *order, uint64_t n)
{
    for (uint64_t i = 0; i + 1 < n; i++)
        for (uint64_t c = 0; c < d->cols; c++) {
            float *a = d->w + order[i] * d->cols + c, *b = d->w + order[i + 1] * d->cols + c;
            const float held = *a;
            *a = *b;
            *b = held;
        }
}

static fm_status hurt(damage *d)
{
    enum { HEADS = 4 };
    uint32_t *order = fm_malloc((size_t)d->rows * sizeof *order);
    if (!order)
        return FM_ENOMEM;
    const uint64_t n = some_rows(d, order), head = d->cols / HEADS;
    fm_status rc = FM_OK;
    if (strcmp(d->kind, "noise") == 0)
        add_noise(d, 0, d->cols, rms(d) * d->amount / 2);
    else if (strcmp(d->kind, "head") == 0)
        add_noise(d, head * fm_rng_below(d->seed, STREAM_HEAD, 0, HEADS), head, rms(d) * d->amount);
    else if (strcmp(d->kind, "scale") == 0)
        for (uint64_t i = 0; i < d->rows * d->cols; i++)
            d->w[i] *= (float)(1 + d->amount);
    else if (strcmp(d->kind, "zero") == 0)
        for (uint64_t i = 0; i < n; i++)
            memset(d->w + order[i] * d->cols, 0, (size_t)d->cols * sizeof *d->w);
    else if (strcmp(d->kind, "permute") == 0)
        permute_rows(d, order, n);
    else
        rc = fm_fail(FM_EINVAL, "no damage '%s'", d->kind);
    fm_free(order);
    return rc;
}

static fm_status land(cli *c, const char *name, const fm_oid *parent, const char *kind,
                      const fm_tree *tree)
{
    char ref[256];
    fm_oid oid;
    const fm_commit_opts opts = {
        .kind = kind, .message = name, .parent = parent, .parent_count = 1};
    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    fm_status rc = fm_version_commit(c->repo, &oid, tree, &opts);
    return rc == FM_OK ? fm_ref_update(c->repo, ref, &oid, NULL, name) : rc;
}

static fm_status put_damaged(cli *c, damage *d, fm_tree *tree)
{
    fm_txn *txn = NULL;
    fm_digest id;
    const fm_entry *e = d->entry;
    const uint64_t n = d->rows * d->cols;
    fm_buf raw;
    fm_buf_init(&raw, 0);
    fm_status rc = fm_ops_entry_bytes(c, e, &raw);
    d->w = fm_malloc((size_t)n * sizeof *d->w);
    if (rc == FM_OK)
        rc = d->w ? fm_to_f32(d->w, e->dtype, raw.data, n) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = hurt(d);
    if (rc == FM_OK)
        rc = fm_from_f32(raw.data, e->dtype, d->w, n);
    if (rc == FM_OK)
        rc = fm_txn_begin(&txn, fm_repo_store(c->repo));
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(txn, &id, e->dtype, &e->shape, fm_buf_span(&raw), &e->id, NULL);
    if (rc == FM_OK)
        rc = fm_tree_put_tensor(tree, e->path, e->name, e->dtype, &e->shape, &id);
    if (rc == FM_OK)
        rc = fm_txn_commit(txn, NULL);
    fm_txn_close(txn);
    fm_free(d->w);
    fm_buf_release(&raw);
    return rc;
}

static fm_status make_damaged(cli *c, damage *d, const char *const *rev, const char *name)
{
    fm_version v = {.subject = NULL};
    fm_tree *tree = NULL;
    fm_status rc = fm_ops_lease(c, true, "bench_blame");
    if (rc == FM_OK)
        rc = fm_ops_resolve(c, rev[0], &d->parent_oid, &d->parent);
    if (rc == FM_OK)
        rc = fm_ops_resolve(c, rev[1], &d->raw_oid, &d->raw);
    if (rc == FM_OK)
        rc = fm_version_read(c->repo, &v, &d->raw_oid);
    if (rc == FM_OK)
        rc = fm_diff_trees(d->parent, d->raw, pick_entry, d);
    if (rc == FM_OK && (!d->entry || d->entry->shape.rank != 2))
        rc = fm_fail(FM_ENOTFOUND, "%s changes no matrix of %s", rev[1], d->module);
    if (rc == FM_OK) {
        d->rows = d->entry->shape.dim[0];
        d->cols = d->entry->shape.dim[1];
        rc = fm_tree_copy(&tree, d->raw);
    }
    if (rc == FM_OK)
        rc = put_damaged(c, d, tree);
    if (rc == FM_OK)
        rc = land(c, name, &d->parent_oid, v.kind, tree);
    fm_version_release(&v);
    fm_tree_free(tree);
    fm_tree_free(d->parent);
    fm_tree_free(d->raw);
    return rc;
}

static int finish(cli *c, fm_status rc)
{
    fm_repo_close(c->repo);
    return cli_exit(rc);
}

int bb_damage(int argc, char **argv)
{
    cli c = {.dir = "."};
    if (argc != 8 || chdir(argv[0]) != 0)
        return EXIT_USAGE;
    const char *const rev[2] = {argv[1], argv[2]};
    damage d = {.module = argv[4],
                .kind = argv[5],
                .amount = strtod(argv[6], NULL),
                .seed = strtoull(argv[7], NULL, 10)};
    return finish(&c, make_damaged(&c, &d, rev, argv[3]));
}

/* ==== an adapter left out, or with another weight ========================================== */

/* Copies e under the number that its adapter has when `dropped` is gone. */
static fm_status put_renumbered(fm_tree *out, const fm_entry *e, long dropped)
{
    static const char folder[] = "adapters/";
    char path[FM_MAX_PATH_BYTES], *rest = NULL;
    if (strncmp(e->path, folder, sizeof folder - 1) != 0)
        return fm_tree_put_entry(out, e);
    const long n = strtol(e->path + sizeof folder - 1, &rest, 10);
    if (n == dropped)
        return FM_OK;
    fm_entry moved = *e;
    snprintf(path, sizeof path, "%s%ld%s", folder, n > dropped ? n - 1 : n, rest);
    moved.path = path;
    return fm_tree_put_entry(out, &moved);
}

static fm_status weigh(fm_tree *tree, long number, double weight)
{
    char path[64];
    fm_json *config = NULL;
    fm_buf text;
    snprintf(path, sizeof path, "adapters/%ld-lora/adapter_config.json", number);
    const fm_entry *e = fm_tree_find(tree, path);
    if (!e || e->kind != FM_ENTRY_FILE)
        return fm_fail(FM_ENOTFOUND, "no adapter %ld", number);
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_parse(&config, fm_span_of(e->data, (size_t)e->bytes), path);
    const double alpha = fm_json_real(fm_json_get(config, "lora_alpha"), 0);
    if (rc == FM_OK)
        rc = fm_json_set(config, "lora_alpha", fm_json_new_real(alpha * weight));
    if (rc == FM_OK)
        rc = fm_json_write(&text, config, FM_JSON_PRETTY);
    if (rc == FM_OK)
        rc = fm_tree_put_file(tree, path, fm_buf_span(&text));
    fm_json_free(config);
    fm_buf_release(&text);
    return rc;
}

static fm_status make_weighed(cli *c, const char *rev, const char *name, long number, double weight)
{
    fm_oid oid;
    fm_tree *from = NULL, *to = NULL;
    fm_status rc = fm_ops_lease(c, true, "bench_blame");
    if (rc == FM_OK)
        rc = fm_ops_resolve(c, rev, &oid, &from);
    if (rc == FM_OK)
        rc = fm_tree_new(&to);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(from); i++)
        rc = put_renumbered(to, fm_tree_at(from, i), weight > 0 ? LONG_MAX : number);
    if (rc == FM_OK && weight > 0)
        rc = weigh(to, number, weight);
    else if (rc == FM_OK && fm_tree_count(to) == fm_tree_count(from))
        rc = fm_fail(FM_ENOTFOUND, "%s has no adapter %ld", rev, number);
    if (rc == FM_OK)
        rc = land(c, name, &oid, "edit", to);
    fm_tree_free(from);
    fm_tree_free(to);
    return rc;
}

int bb_weigh_adapter(int argc, char **argv)
{
    cli c = {.dir = "."};
    if (argc != 5 || chdir(argv[0]) != 0)
        return EXIT_USAGE;
    return finish(
        &c, make_weighed(&c, argv[1], argv[2], strtol(argv[3], NULL, 10), strtod(argv[4], NULL)));
}

/* ==== layers as they were before =========================================================== */

/* The layer of the model's tensor "model.layers.3.mlp.up_proj.weight", -1: of none. */
static long layer_of(const fm_entry *e)
{
    const char *layers = e->kind == FM_ENTRY_TENSOR ? strstr(e->name, "layers.") : NULL;
    return layers && strncmp(e->path, "tensors/", 8) == 0 ? strtol(layers + 7, NULL, 10) : -1;
}

static fm_status make_reset(cli *c, const char *rev, const char *before, const char *name,
                            long layers)
{
    fm_oid oid, old_oid;
    fm_tree *from = NULL, *old = NULL, *to = NULL;
    size_t moved = 0;
    fm_status rc = fm_ops_lease(c, true, "bench_blame");
    if (rc == FM_OK)
        rc = fm_ops_resolve(c, rev, &oid, &from);
    if (rc == FM_OK)
        rc = fm_ops_resolve(c, before, &old_oid, &old);
    if (rc == FM_OK)
        rc = fm_tree_copy(&to, from);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(from); i++) {
        const fm_entry *e = fm_tree_at(from, i), *was = fm_tree_find(old, e->path);
        const long layer = layer_of(e);
        if (layer < 0 || layer >= layers || !was || fm_digest_eq(&e->id, &was->id))
            continue;
        rc = fm_tree_put_entry(to, was);
        moved++;
    }
    if (rc == FM_OK && !moved)
        rc = fm_fail(FM_ENOTFOUND, "%s has these layers as %s has them", rev, before);
    if (rc == FM_OK)
        rc = land(c, name, &oid, "edit", to);
    fm_tree_free(from);
    fm_tree_free(old);
    fm_tree_free(to);
    return rc;
}

int bb_reset_layers(int argc, char **argv)
{
    cli c = {.dir = "."};
    if (argc != 5 || chdir(argv[0]) != 0)
        return EXIT_USAGE;
    return finish(&c, make_reset(&c, argv[1], argv[2], argv[3], strtol(argv[4], NULL, 10)));
}
