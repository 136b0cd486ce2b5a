/* ops.c - opens the repository and the engine of a handle, once, by its options. */
#include "cli/ops/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/ops/base/demand.h"
#include "cli/ops/base/ranks.h"
#include "cli/ops/base/say.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

#define STEP_TIMEOUT_S 600u
#define MIB ((uint64_t)1 << 20)
#define KV_LEAST_MIB ((uint64_t)256)

fm_status fm_ops_open(fm_ops *c)
{
    return c->repo ? FM_OK : fm_repo_open(&c->repo, c->dir);
}

void fm_ops_close(fm_ops *c)
{
    fm_engine_free(c->engine);
    c->engine = NULL;
    fmo_ranks_close(c);
    fmo_demand_end(c);
    fm_repo_close(c->repo);
    c->repo = NULL;
}

fm_status fm_ops_lease(fm_ops *c, bool writes, const char *what)
{
    FM_TRY(fm_ops_open(c));

    fm_status rc = fm_store_lease(fm_repo_store(c->repo), writes, what);
    if (rc == FM_EIO && !writes) { /* read-only: gc cannot delete there either */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

fm_status fm_ops_config_uint(fm_ops *c, const char *key, const char *unit, uint64_t least,
                             uint64_t most, uint64_t *value)
{
    char *text = c->repo ? fm_repo_config(c->repo, key) : NULL, *end = NULL;
    if (!text)
        return FM_OK;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    bool good =
        text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && n >= least && n <= most;
    if (good)
        *value = n;
    fm_status rc =
        good ? FM_OK
             : fm_fail(FM_EINVAL, "config %s is '%s', not a number of %s (%llu to %llu)", key, text,
                       unit, (unsigned long long)least, (unsigned long long)most);
    fm_free(text);
    return rc;
}

uint64_t fm_ops_machine_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

/* Config fmstore.cachemax, in MiB; 0: nothing is kept there. */
static fm_status cache_max(fm_ops *c, uint64_t *bytes)
{
    uint64_t mib = *bytes / MIB;
    FM_TRY(fm_ops_config_uint(c, "fmstore.cachemax", "MiB", 0, FM_OPS_MIB_MAX, &mib));
    *bytes = mib * MIB;
    return FM_OK;
}

/* The first of --device, FMSTORE_DEVICE, config compute.device that is set. *kept owns the text. */
static fm_status pick_device(fm_ops *c, const char **out, char **kept)
{
    const char *env = getenv("FMSTORE_DEVICE");
    *kept = NULL;
    *out = c->device;
    bool asked = *out, set = env && *env;
    if (!asked && set)
        *out = env;
    if (!*out && c->repo)
        *out = *kept = fm_repo_config(c->repo, "compute.device");
    fm_status rc = fm_device_check(*out);
    if (rc == FM_OK || asked) /* --device was checked when it was read */
        return rc;
    return fm_error_prefix(rc, set ? "environment FMSTORE_DEVICE" : "config compute.device");
}

/* Config compute.stepTimeout, in seconds; 0: a step may take any time. */
static fm_status read_step_timeout(fm_ops *c)
{
    uint64_t s = STEP_TIMEOUT_S;
    FM_TRY(fm_ops_config_uint(c, "compute.stepTimeout", "seconds", 0, 10000000, &s));
    c->step_timeout_s = (uint32_t)s;
    return FM_OK;
}

/* The KV cache's memory: the caller's number, else config compute.kvMemory, else an eighth of the
 * machine's. A GPU takes all of it at once, and its memory is not the machine's: there the default
 * is the engine's own. */
static fm_status read_kv_memory(fm_ops *c, const fm_engine_opts *opts)
{
    uint64_t mib = c->kv_bytes_max / MIB;
    if (mib == 0)
        FM_TRY(fm_ops_config_uint(c, "compute.kvMemory", "MiB", 1, FM_OPS_MIB_MAX, &mib));
    c->kv_bytes = mib * MIB;
    if (mib)
        return FM_OK;
    bool host = !opts->device || strcmp(opts->device, "cpu") == 0;
    uint64_t machine = host ? fm_ops_machine_bytes() : 0;
    c->kv_bytes = machine ? FM_MAX(machine / 8 / MIB, KV_LEAST_MIB) * MIB : opts->kv_bytes_max;
    return FM_OK;
}

static fm_status new_engine(fm_ops *c, fm_engine_opts *opts)
{
    char card[RANKS_CARD_BYTES];
    if (opts->comm)
        FM_TRY(fmo_ranks_card(c, &opts->device, card));
    FM_TRY(fm_engine_new(&c->engine, opts));
    fm_engine_hung(c->engine, c->ui.hung, c->ui.ctx);
    return FM_OK;
}

fm_status fm_ops_engine(fm_ops *c)
{
    char *folder = NULL, *device;
    if (c->engine)
        return FM_OK;
    fm_engine_opts opts = fm_engine_defaults();
    opts.weight_bytes_max = c->weight_bytes_max;
    opts.keep_stored = c->keep_stored;
    if (c->mode)
        opts.mode = c->mode;
    fm_status rc = pick_device(c, &opts.device, &device);
    FM_THEN(rc, fmo_ranks_mine() == 0 ? read_step_timeout(c) : FM_OK);
    FM_THEN(rc, read_kv_memory(c, &opts));
    opts.kv_bytes_max = c->kv_bytes;
    if (rc == FM_OK && fmo_ranks_wanted(c) && !c->comm)
        rc = fmo_ranks_open(c, c->split_batches);
    bool takes = c->comm && !c->ranks_taken;
    if (rc == FM_OK && takes && !c->split_batches && fmo_ranks_mine() == 0)
        rc = fmo_ranks_tell_engine(c);
    c->ranks_taken = c->ranks_taken || takes;
    opts.threads = c->threads;
    opts.step_timeout_s = (double)c->step_timeout_s;
    opts.comm = takes ? c->comm : NULL;
    opts.comm_splits_batches = c->split_batches;
    opts.stages = takes ? c->stages : 0;
    if (rc == FM_OK && opts.comm && !c->split_batches) /* one budget of all ranks */
        opts.kv_bytes_max /= fm_comm_size(opts.comm);
    if (rc == FM_OK && c->keep_packed && c->repo) {
        rc = cache_max(c, &opts.cache_bytes_max);
        folder = rc == FM_OK ? fm_path_join(fm_repo_path(c->repo), "cache") : NULL;
        if (rc == FM_OK && !folder)
            rc = FM_ENOMEM;
        opts.cache_dir = opts.cache_bytes_max ? folder : NULL;
    }
    FM_THEN(rc, new_engine(c, &opts));
    fm_free(device);
    fm_free(folder);
    return rc;
}

/* Warns of damaged files in the cache: a disk that damages one file damages others. */
static void tell_damage(fm_ops *c)
{
    static uint64_t told;
    uint64_t refused = fm_engine_stats_of(c->engine).packed_refused;
    if (refused > told)
        fmo_ui_say(c, FM_UI_WARNING, "%llu damaged files under cache/packed were made anew",
                   (unsigned long long)(refused - told));
    told = refused;
}

fm_status fm_ops_resolve(fm_ops *c, const char *rev, fm_oid *oid, fm_tree **tree)
{
    FM_TRY(fm_ops_open(c));
    FM_TRY(fm_rev_resolve(c->repo, oid, rev));
    if (!tree)
        return FM_OK;
    FM_TRY(fmo_demand_begin(c));
    return fm_version_tree(c->repo, tree, oid);
}

fm_status fm_ops_load_model(fm_ops *c, const fm_tree *tree, const char *what, fm_model **out)
{
    fm_provider p = fm_store_provider(fm_repo_store(c->repo));
    FM_TRY(fmo_demand_tree(c, tree));
    FM_TRY(fm_ops_engine(c));

    fm_status rc = fm_model_load(out, c->engine, tree, &p, what);
    tell_damage(c);
    return rc;
}

fm_status fm_ops_load_rev(fm_ops *c, const char *rev, fm_oid *oid, fm_model **out)
{
    fm_tree *tree = NULL;
    fm_status rc = fm_ops_lease(c, false, "a model in use");
    FM_THEN(rc, fm_ops_resolve(c, rev, oid, &tree));
    FM_THEN(rc, fm_ops_load_model(c, tree, rev, out));
    fm_tree_free(tree);
    return rc;
}

fm_status fm_ops_entry_bytes(fm_ops *c, const fm_entry *e, fm_buf *out)
{
    fm_provider p = fm_store_provider(fm_repo_store(c->repo));
    return fm_entry_read(out, &p, e);
}

static fm_status text_entry(fm_ops *c, const fm_tree *tree, const char *path, fm_buf *out)
{
    const fm_entry *e = fm_tree_find(tree, path);
    return e ? fm_ops_entry_bytes(c, e, out) : FM_OK;
}

fm_status fm_ops_open_tokenizer(fm_ops *c, const fm_tree *tree, const char *what,
                                fm_tokenizer **out)
{
    fm_buf json, config;
    fm_buf_init(&json, 0);
    fm_buf_init(&config, 0);
    *out = NULL;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && !json.len && fm_tokenizer_paths[i]; i++)
        rc = text_entry(c, tree, fm_tokenizer_paths[i], &json);
    FM_THEN(rc, text_entry(c, tree, "tokenizer/tokenizer_config.json", &config));
    if (rc == FM_OK && !json.len)
        rc = fm_fail(
            FM_EUNSUPPORTED,
            "%s has no tokenizer.json or tokenizer.model, so it cannot read text; import the "
            "model's whole folder",
            what);
    FM_THEN(rc, fm_tokenizer_open(out, fm_buf_span(&json), fm_buf_span(&config), what));
    fm_buf_release(&json);
    fm_buf_release(&config);
    return rc;
}

const char *fm_ops_short_oid(const fm_oid *oid)
{
    static _Thread_local char slot[8][41];
    static _Thread_local unsigned next;
    char *s = slot[next++ % 8];
    fm_oid_hex(oid, s);
    s[10] = 0;
    return s;
}
