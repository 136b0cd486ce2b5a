/* derive.c - fmstore derive: options to a family of one or many children. */
#include <string.h>

#include "cli/commands.h"
#include "cli/derive/derive.h"
#include "cli/base/ranks.h"
#include "store/base/mem.h"

typedef struct derive_opts {
    const char *family_file, *name, *method, *eval, *message, *skip, *config_dir, *mode, *teacher;
    opt_list data, set, suites;
    bool no_gate;
    derive_how how;
} derive_opts;

static fm_status one_child(family *f, const derive_opts *o, const char *parent)
{
    fm_train_config config;
    const char *word = o->method ? o->method : o->config_dir ? "pretrain" : "lora";
    fm_status rc = config_of_method(&config, word);
    child *ch = rc == FM_OK ? family_add(f, &config) : NULL;
    if (!ch)
        return rc < 0 ? rc : FM_ENOMEM;
    f->parent = parent ? fm_strdup(parent) : NULL;
    f->config_dir = o->config_dir ? fm_strdup(o->config_dir) : NULL;
    ch->name = fm_strdup(o->name);
    ch->message = o->message ? fm_strdup(o->message) : NULL;
    ch->teacher = o->teacher ? fm_strdup(o->teacher) : NULL;
    ch->suites = o->suites;
    if (!f->parent == !f->config_dir || !ch->name || !o->message != !ch->message ||
        !o->teacher != !ch->teacher)
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < o->data.count; i++)
        rc = data_add_word(&ch->data, o->data.item[i]);
    if (rc == FM_OK && o->eval)
        rc = data_eval_word(&ch->data, o->eval);
    for (size_t i = 0; rc == FM_OK && i < o->set.count; i++) {
        char key[64];
        const char *eq = strchr(o->set.item[i], '=');
        if (!eq || (size_t)(eq - o->set.item[i]) >= sizeof key)
            return fm_fail(FM_EINVAL, "--set wants KEY=VALUE, got '%s'", o->set.item[i]);
        memcpy(key, o->set.item[i], (size_t)(eq - o->set.item[i]));
        key[eq - o->set.item[i]] = 0;
        rc = fm_train_config_set(&ch->config, key, eq + 1);
    }
    if (rc == FM_OK && o->skip)
        rc = child_skip_text(ch, o->skip);
    return rc;
}

/* It is part of the recipe, so the file and the command line must not say two things. */
static fm_status choose_mode(cli *c, const family *f, const char *word)
{
    const char *mode = family_mode(f);
    if (mode && word && strcmp(mode, word) != 0)
        return fm_fail(FM_EINVAL, "--mode %s, but the family file says mode: %s", word, mode);
    c->mode = word ? word : mode;
    return FM_OK;
}

/* Each rank takes as many shards of a step; what the file or --set says stands. */
static fm_status share_over_ranks(cli *c, family *f)
{
    uint32_t ranks = ranks_count(c);
    if (c->split > 1)
        return fm_fail(FM_EUNSUPPORTED,
                       "training deals whole layers to stages and does not split them; leave "
                       "--tensor-parallel-size out");
    if (ranks <= 1)
        return FM_OK;
    for (size_t i = 0; i < f->count; i++)
        if (f->child[i].config.shards == 1)
            f->child[i].config.shards = ranks;
    c->split_batches = true;
    return FM_OK;
}

/* What it would take is one rank's to say. */
static void plan_on_one(cli *c, derive_how *how)
{
    how->ranks = c->ranks;
    c->ranks = 0;
}

static int check_opts(cli *c, derive_opts *o, size_t parents)
{
    if (o->family_file &&
        (parents || o->name || o->data.count || o->eval || o->method || o->skip || o->message ||
         o->config_dir || o->teacher || o->set.count || o->suites.count))
        return cli_usage_error(c, "-f FILE says itself what the children are; with it go only "
                                  "--mode, --device, --plan, --check-data, --eval-every, "
                                  "--recompute, --stored, --no-gate, --log, "
                                  "--stop-after and those of checkpoints");
    if (!o->name && o->how.check_data)
        o->name = "data"; /* nothing is made */
    if (!o->family_file && (!o->name || o->data.count == 0 || (parents == 0) == !o->config_dir))
        return cli_usage_error(c, "want PARENT --as NAME --data FILE (or --from-config DIR instead "
                                  "of PARENT, or -f FAMILY.yaml)");
    return CLI_GO_ON;
}

int cmd_derive(cli *c, int argc, char **argv)
{
    derive_opts o = {0};
    const char *parent = NULL;
    size_t n;
    family f = {0};
    const opt_spec table[] = {
        {'f', "family", OPT_STR, "FILE", "children of one parent from a YAML file", &o.family_file},
        {0, "as", OPT_STR, "NAME", "branch to make", &o.name},
        {0, "method", OPT_STR, "M",
         "lora (default), dora, full, ia3, prefix, prompt, bitfit, or pretrain (with "
         "--from-config)",
         &o.method},
        {0, "mode", OPT_STR, "M", "exact (same bits everywhere) or bf16 (products in bfloat16)",
         &o.mode},
        {0, "data", OPT_LIST, "FILE[:WEIGHT]", "JSON, JSONL, CSV or text; may be given many times",
         &o.data},
        {0, "eval", OPT_STR, "SHARE|FILE", "examples held out of training", &o.eval},
        {0, "eval-every", OPT_UINT, "N", "measure what is held out each N steps (at the end alone)",
         &o.how.eval_every},
        {0, "teacher", OPT_STR, "REV", "the model that objective=distill follows", &o.teacher},
        {0, "check-data", OPT_FLAG, NULL, "print the report on the data and stop; exit 1 on errors",
         &o.how.check_data},
        {0, "set", OPT_LIST, "KEY=VALUE",
         "r, alpha, lr, steps, epochs, batch, seed, ...; a wrong KEY lists all", &o.set},
        {0, "skip", OPT_STR, "N,N,...", "records of the data to leave out", &o.skip},
        {0, "suite", OPT_LIST, "FILE", "hang a test suite on it", &o.suites},
        {0, "from-config", OPT_STR, "DIR", "pretrain: config.json and tokenizer", &o.config_dir},
        {0, "no-gate", OPT_FLAG, NULL, "land it without running its suites", &o.no_gate},
        {'m', "message", OPT_STR, "TEXT", "commit message", &o.message},
        {0, "log", OPT_STR, "FILE", "write each step's loss, gradient norm and rate as JSON",
         &o.how.log_path},
        {0, "plan", OPT_FLAG, NULL,
         "say what memory and time it would take, over --ranks and --stages too, and train "
         "nothing",
         &o.how.plan},
        {0, "topology", OPT_STR, "KEY=VALUE,...",
         "of --plan: ranks, nodes, link (nvlink, pcie, host), link-gb, net-gb, memory-gib, "
         "memory-gb, tflops",
         &o.how.topology},
        {0, "recompute", OPT_FLAG, NULL, "less memory for more time; the same result",
         &o.how.recompute},
        {0, "stored", OPT_FLAG, NULL,
         "the frozen stem stays in the type that it is stored in (QLoRA): less memory, more time; "
         "the same result",
         &c->keep_stored},
        {0, "checkpoint-every", OPT_UINT, "N", "keep the state each N steps (default: each minute)",
         &o.how.keep.every},
        {0, "checkpoint-last", OPT_UINT, "N", "of the states the newest N stay (1)",
         &o.how.keep.last},
        {0, "checkpoint-each", OPT_UINT, "K", "and those whose step is a multiple of K",
         &o.how.keep.each},
        {0, "keep-checkpoints", OPT_FLAG, NULL, "also when the branch is made", &o.how.keep.after},
        {0, "stop-after", OPT_UINT, "N",
         "stop after N steps as Ctrl-C does; the same command goes on", &o.how.stop_after},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &parent, 0, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    code = check_opts(c, &o, n);
    if (code != CLI_GO_ON)
        return code;
    if (ranks_mine() > 0 && (o.how.plan || o.how.check_data))
        return EXIT_YES; /* rank 0 says it */
    cli_catch_interrupts(false);
    o.how.gate = !o.no_gate;
    fm_status rc =
        o.family_file ? family_read(&f, o.family_file) : one_child(&f, &o, n ? parent : NULL);
    if (rc == FM_OK)
        rc = choose_mode(c, &f, o.mode);
    if (rc == FM_OK && !o.how.plan && !o.how.check_data)
        rc = share_over_ranks(c, &f);
    else
        plan_on_one(c, &o.how);
    if (rc == FM_OK)
        rc = cli_lease(c, true, "derive");
    if (rc == FM_OK)
        rc = family_derive(c, &f, &o.how);
    c->mode = NULL; /* the file's goes with it */
    family_release(&f);
    if (ranks_mine() > 0 && c->comm) /* rank 0 has heard of it, and tells */
        return rc == FM_OK ? EXIT_YES : EXIT_FAILURE_128;
    return cli_exit(rc);
}
