/* derive.c - fmstore derive: its options. */
#include "cli/commands.h"
#include "cli/ops/base/ranks.h"
#include "cli/report/report.h"

static int check_opts(cli *c, fm_derive_opts *o, size_t parents)
{
    if (o->family_file &&
        (parents || o->name || o->data.count || o->eval || o->method || o->skip || o->message ||
         o->config_dir || o->teacher || o->set.count || o->suites.count))
        return cli_usage_error(c, "-f FILE says itself what the children are; with it go only "
                                  "--mode, --device, --plan, --check-data, --eval-every, "
                                  "--recompute, --stored, --no-gate, --log, "
                                  "--stop-after and those of checkpoints");
    if (!o->name && o->check_data)
        o->name = "data"; /* no branch is made */
    if (!o->family_file && (!o->name || o->data.count == 0 || (parents == 0) == !o->config_dir))
        return cli_usage_error(c, "want PARENT --as NAME --data FILE (or --from-config DIR instead "
                                  "of PARENT, or -f FAMILY.yaml)");
    return CLI_GO_ON;
}

int cmd_derive(cli *c, int argc, char **argv)
{
    fm_derive_opts o = {0};
    const char *parent = NULL;
    size_t n;
    fm_derive_result r;
    const opt_spec table[] = {
        {'f', "family", OPT_STR, "FILE", "children of one parent from a YAML file", &o.family_file},
        {0, "as", OPT_STR, "NAME", "branch to make", &o.name},
        {0, "method", OPT_STR, "M",
         "lora (default), dora, full, ia3, prefix, prompt, bitfit, ln_tuning, loha, lokr, oft, "
         "boft, hra, miss, shira, fourierft, randlora, vera, adalora, or "
         "pretrain "
         "(with --from-config)",
         &o.method},
        {0, "mode", OPT_STR, "M", "exact (same bits everywhere) or bf16 (products in bfloat16)",
         &o.mode},
        {0, "data", OPT_LIST, "FILE[:WEIGHT]", "JSON, JSONL, CSV or text; may be given many times",
         &o.data},
        {0, "eval", OPT_STR, "SHARE|FILE", "examples held out of training", &o.eval},
        {0, "eval-every", OPT_UINT, "N", "measure what is held out each N steps (at the end alone)",
         &o.eval_every},
        {0, "teacher", OPT_STR, "REV", "the model that objective=distill follows", &o.teacher},
        {0, "check-data", OPT_FLAG, NULL, "print the report on the data and stop; exit 1 on errors",
         &o.check_data},
        {0, "set", OPT_LIST, "KEY=VALUE",
         "r, alpha, lr, steps, epochs, batch, seed, ...; a wrong KEY lists all", &o.set},
        {0, "skip", OPT_STR, "N,N,...", "records of the data to leave out", &o.skip},
        {0, "suite", OPT_LIST, "FILE", "hang a test suite on it", &o.suites},
        {0, "from-config", OPT_STR, "DIR", "pretrain: config.json and tokenizer", &o.config_dir},
        {0, "no-gate", OPT_FLAG, NULL, "land it without running its suites", &o.no_gate},
        {'m', "message", OPT_STR, "TEXT", "commit message", &o.message},
        {0, "log", OPT_STR, "FILE", "write each step's loss, gradient norm and rate as JSON",
         &o.log_path},
        {0, "plan", OPT_FLAG, NULL,
         "say what memory and time it would take, of --ranks and --stages what each would hold, "
         "and train nothing",
         &o.plan},
        {0, "recompute", OPT_FLAG, NULL, "less memory for more time; the same result",
         &o.recompute},
        {0, "stored", OPT_FLAG, NULL,
         "the frozen stem stays in the type that it is stored in (QLoRA): less memory, more time; "
         "the same result",
         &c->keep_stored},
        {0, "checkpoint-every", OPT_UINT, "N", "keep the state each N steps (default: each minute)",
         &o.keep.every},
        {0, "checkpoint-last", OPT_UINT, "N", "of the states the newest N stay (1)", &o.keep.last},
        {0, "checkpoint-each", OPT_UINT, "K", "and those whose step is a multiple of K",
         &o.keep.each},
        {0, "keep-checkpoints", OPT_FLAG, NULL, "also when the branch is made", &o.keep.after},
        {0, "stop-after", OPT_UINT, "N",
         "stop after N steps as Ctrl-C does; the same command goes on", &o.stop_after},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &parent, 0, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    code = check_opts(c, &o, n);
    if (code != CLI_GO_ON)
        return code;
    if (fmo_ranks_mine() > 0 && (o.plan || o.check_data))
        return EXIT_YES; /* rank 0 reports */
    cli_catch_interrupts(true);
    o.parent = n ? parent : NULL;
    fm_status rc = fm_ops_derive(c, &o, &r);
    if (rc == FM_OK && o.plan)
        print_derive_plan(c, &r.plan);
    fm_derive_result_release(&r);
    if (fmo_ranks_mine() > 0 && c->comm) /* rank 0 knows of a failure, and reports it */
        return rc == FM_OK ? EXIT_YES : EXIT_FAILURE_128;
    return cli_exit(rc);
}
