/* serve.c - fmstore serve: an OpenAI-compatible server; its models are branches, tags and ids. */
#include <string.h>

#include "cli/cmd/serve_sites.h"
#include "cli/commands.h"
#include "cli/ops/base/demand.h"
#include "cli/ops/base/ranks.h"
#include "cli/report/plan_ranks.h"
#include "infer/serve/server.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

#define MIB ((uint64_t)1 << 20)
#define NOT_GIVEN UINT64_MAX

typedef struct catalog {
    cli *c;
    fm_ops loader;     /* for the loading thread: one thread at a time may use a handle */
    const char **only; /* names that may be requested; count 0: every revision */
    size_t count;
} catalog;

static bool allowed(const catalog *k, const char *name)
{
    if (k->count == 0)
        return true;
    for (size_t i = 0; i < k->count; i++)
        if (strcmp(k->only[i], name) == 0)
            return true;
    return false;
}

static fm_status resolve(void *ctx, const char *name, char version[65])
{
    catalog *k = ctx;
    fm_oid oid;
    if (!allowed(k, name))
        return fm_fail(FM_ENOTFOUND, "model '%s' is not served here", name);
    fm_status rc = fm_rev_resolve(k->c->repo, &oid, name);
    if (rc == FM_ENOTFOUND && !fm_path_is_dir(fm_repo_path(k->c->repo)))
        return fm_fail(FM_EIO, "model '%s' cannot be looked up: the repository is not at %s", name,
                       fm_repo_path(k->c->repo));
    if (rc == FM_OK)
        fm_oid_hex(&oid, version);
    return rc;
}

static fm_status tree_of(void *ctx, const char *version, fm_tree **out)
{
    catalog *k = ctx;
    fm_oid oid;
    FM_TRY(fm_ops_resolve(&k->loader, version, &oid, out));
    fm_status rc = fmo_demand_tree(&k->loader, *out);
    if (rc == FM_OK)
        return FM_OK;
    fm_tree_free(*out);
    *out = NULL;
    if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    return fm_error_prefix(FM_EIO, "its tensors could not be fetched"); /* which may pass: 503 */
}

static bool is_over(void *ctx, const fm_ui_progress *p)
{
    (void)ctx;
    (void)p;
    return cli_interrupted;
}

typedef struct list_state {
    catalog *k;
    fm_status (*each)(void *ctx, const char *name, const char *version, int64_t created);
    void *ctx;
} list_state;

static fm_status list_one(void *ctx, const char *ref, const fm_oid *oid)
{
    list_state *s = ctx;
    fm_version v;
    char hex[41];
    const char *name = strchr(ref + 5, '/') + 1;
    if (!allowed(s->k, name))
        return FM_OK;
    FM_TRY(fm_version_read(s->k->c->repo, &v, oid));
    fm_oid_hex(oid, hex);
    fm_status rc = s->each(s->ctx, name, hex, v.time);
    fm_version_release(&v);
    return rc;
}

static fm_status list_all(void *ctx,
                          fm_status (*each)(void *each_ctx, const char *name, const char *version,
                                            int64_t created),
                          void *each_ctx)
{
    catalog *k = ctx;
    list_state s = {k, each, each_ctx};
    FM_TRY(fm_ref_each(k->c->repo, "refs/heads/", list_one, &s));
    return fm_ref_each(k->c->repo, "refs/tags/", list_one, &s);
}

/* Reads the key from the file's first line: a command line is visible to all users of the
 * machine. */
static fm_status read_key(const char *path, fm_buf *key)
{
    FM_TRY(fm_read_file(key, path, 4096));
    const char *text = fm_buf_cstr(key);
    size_t end = strcspn(text, "\r\n"), from = strspn(text, " \t");
    while (end > from && (text[end - 1] == ' ' || text[end - 1] == '\t'))
        end--; /* a header cannot end in blanks */
    if (end <= from)
        return fm_fail(FM_EINVAL, "%s: holds no key on its first line", path);
    memmove(key->data, key->data + from, end - from);
    key->len = end - from;
    key->data[key->len] = 0;
    return FM_OK;
}

static void hung(void *server, const char *text)
{
    fm_server_abandon(server, text);
    cli_hung(NULL, text);
}

static fm_status begin(fm_server **out, const catalog *k, const fm_server_opts *opts,
                       const opt_list *pins)
{
    fm_status rc = fm_server_new(out, k->c->engine, opts);
    for (size_t i = 0; rc == FM_OK && i < pins->count; i++)
        rc = allowed(k, pins->item[i])
                 ? fm_server_pin(*out, pins->item[i])
                 : fm_fail(FM_EINVAL, "--pin %s: is not among the models to serve", pins->item[i]);
    for (size_t i = 0; rc == FM_OK && i < k->count; i++)
        rc = fm_server_preload(*out, k->only[i]);
    if (rc == FM_OK) /* the server outlives every step of the engine */
        fm_engine_hung(k->c->engine, hung, *out);
    return rc;
}

/* A limit that an option, else the repository's config, changes. */
typedef struct limit {
    const char *option, *key, *unit;
    uint64_t least, most, given; /* given: the option's number, NOT_GIVEN */
    uint32_t *value;
} limit;

static fm_status read_limits(cli *c, const limit *all, size_t n)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        uint64_t v = all[i].given != NOT_GIVEN ? all[i].given : *all[i].value;
        if (all[i].given == NOT_GIVEN)
            rc = fm_ops_config_uint(c, all[i].key, all[i].unit, all[i].least, all[i].most, &v);
        *all[i].value = (uint32_t)v;
    }
    return rc;
}

static fm_status plan_all(cli *c, const char *rev, uint32_t rows)
{
    uint32_t ranks = FM_MAX(c->ranks, 1u);
    c->ranks = 0; /* one process makes the plan */
    FM_TRY(fm_ops_open(c));
    FM_TRY(fm_ops_engine(c));
    return plan_serve(c, rev, ranks, c->stages, rows, fm_ops_machine_bytes());
}

static void announce(const fm_server *server, const fm_server_opts *o, const serve_sites *sites)
{
    const bool v6 = strchr(o->host, ':') != NULL;
    printf("serving on http://%s%s%s:%u  (Ctrl-C stops)\n", v6 ? "[" : "", o->host, v6 ? "]" : "",
           fm_server_port(server));
    serve_sites_announce(sites);
    fflush(stdout);
    if (!o->api_key && !fm_server_local(server))
        fprintf(stderr,
                "note: whoever reaches %s can use this server; --api-key-file asks for a key\n",
                o->host);
}

int cmd_serve(cli *c, int argc, char **argv)
{
    fm_server_opts opts = fm_server_defaults();
    const char *args[OPT_LIST_MAX], *key_file = NULL;
    uint64_t port = 8080, max_running = opts.max_running, kv = NOT_GIVEN;
    limit limits[] = {
        {"max-queue", "serve.maxQueue", "requests", 0, 32768, NOT_GIVEN, &opts.max_queue},
        {"max-models", "serve.maxModels", "models", 1, 65536, NOT_GIVEN, &opts.max_models},
        {"max-tokens", "serve.maxTokens", "tokens", 1, 1048576, NOT_GIVEN, &opts.max_tokens},
    };
    /* The other half is for the KV cache and for other programs. */
    uint64_t weights = fm_ops_machine_bytes() / 2 / MIB;
    opt_list pins = {.count = 0};
    size_t n;
    fm_buf key;
    bool plan = false;
    serve_sites sites = {.remote = false};
    fm_server *server = NULL;
    const opt_spec table[] = {
        {0, "port", OPT_UINT, "N", "0 = any free one (8080)", &port},
        {0, "host", OPT_STR, "H", "address to bind to (127.0.0.1)", &opts.host},
        {0, "api-key-file", OPT_STR, "FILE", "ask clients for the key on its first line",
         &key_file},
        {0, "max-running", OPT_UINT, "N", "answers in one batch (32)", &max_running},
        {0, "max-queue", OPT_UINT, "N",
         "answers that may wait; more are refused (config serve.maxQueue, 256)", &limits[0].given},
        {0, "max-models", OPT_UINT, "N", "versions in memory (config serve.maxModels, 64)",
         &limits[1].given},
        {0, "max-tokens", OPT_UINT, "N",
         "most tokens that a request may ask for (config serve.maxTokens, 4096)", &limits[2].given},
        {0, "kv-memory", OPT_UINT, "MIB",
         "most memory for keys and values (config compute.kvMemory; an eighth of the machine's, "
         "on a GPU 1024)",
         &kv},
        {0, "weights-memory", OPT_UINT, "MIB",
         "most memory for weights, 0 = no bound (half of the machine's)", &weights},
        {0, "pin", OPT_LIST, "REV", "keep this version in memory; may be given again", &pins},
        {0, "remote", OPT_FLAG, NULL, "clone and fetch may come from here, by this server's URL",
         &sites.remote},
        {0, "remote-write", OPT_FLAG, NULL, "push too; wants --api-key-file", &sites.remote_write},
        {0, "hub", OPT_FLAG, NULL,
         "answer Hugging Face's clients too, whose HF_ENDPOINT is this server's URL", &sites.hub},
        {0, "plan", OPT_FLAG, NULL,
         "say what each of --ranks would hold of the model, in how many --stages, and serve "
         "nothing",
         &plan},
        CLI_MODE_OPTION(c),
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    c->mode = CLI_ANSWER_MODE;
    c->keep_packed = true;
    int code = cli_parse(c, argc, argv, table, args, 0, OPT_LIST_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    if (port > 65535 || max_running == 0 || max_running > 4096)
        return cli_usage_error(c, "--port wants 0 to 65535, --max-running 1 to 4096");
    if (weights > UINT64_MAX / MIB)
        return cli_usage_error(c, "--weights-memory wants MiB, fewer");
    if (kv != NOT_GIVEN && (kv == 0 || kv > FM_OPS_MIB_MAX))
        return cli_usage_error(c, "--kv-memory wants MiB, at least 1");
    for (size_t i = 0; i < FM_ARRAY_LEN(limits); i++)
        if (limits[i].given != NOT_GIVEN &&
            (limits[i].given < limits[i].least || limits[i].given > limits[i].most))
            return cli_usage_error(c, "--%s wants %llu to %llu", limits[i].option,
                                   (unsigned long long)limits[i].least,
                                   (unsigned long long)limits[i].most);
    c->weight_bytes_max = weights * MIB;
    c->kv_bytes_max = kv == NOT_GIVEN ? 0 : kv * MIB;
    if (sites.remote_write && !key_file)
        return cli_usage_error(c, "--remote-write wants --api-key-file FILE: whoever has the key "
                                  "may push");
    if ((sites.remote || sites.remote_write || sites.hub) && n > 0)
        return cli_usage_error(c, "--%s gives every version to whoever fetches: name no REV",
                               sites.hub ? "hub" : "remote");
    if (plan && n != 1)
        return cli_usage_error(c, "--plan wants one REV");
    if (plan)
        return cli_exit(plan_all(c, args[0], (uint32_t)max_running));
    catalog k = {.c = c, .only = args, .count = n};
    k.loader = (fm_ops){.dir = c->dir, .ui = {.message = c->ui.message, .progress = is_over}};
    fm_buf_init(&key, 8192);
    cli_catch_interrupts(false);
    fm_status rc = fm_ops_open(c);
    FM_THEN(rc, fm_ops_lease(&k.loader, false, "serve"));
    FM_THEN(rc, read_limits(c, limits, FM_ARRAY_LEN(limits)));
    FM_THEN(rc, fm_ops_engine(c));
    if (rc == FM_OK && key_file)
        rc = read_key(key_file, &key);
    FM_THEN(rc, serve_sites_open(&sites, fm_repo_path(k.loader.repo)));
    if (rc == FM_OK) {
        opts.sites = sites.site;
        opts.port = (uint16_t)port;
        opts.max_running = (uint32_t)max_running;
        opts.api_key = key_file ? fm_buf_cstr(&key) : NULL;
        opts.catalog = (fm_server_catalog){&k, resolve, tree_of, list_all,
                                           fm_store_provider(fm_repo_store(k.loader.repo))};
        rc = begin(&server, &k, &opts, &pins);
    }
    if (rc == FM_OK) {
        announce(server, &opts, &sites);
        rc = fm_server_run(server, &cli_interrupted);
    }
    fm_server_free(server);
    serve_sites_close(&sites);
    fm_ops_close(&k.loader);
    fm_buf_release(&key);
    return cli_exit(rc);
}
