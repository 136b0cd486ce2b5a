/* main.c - the table of commands; finds the command, one file each, and returns its exit code. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/ops/base/ranks.h"
#include "cli/report/ui.h"
#include "infer/comm_launch.h"

typedef struct command {
    const char *name;
    int (*run)(cli *c, int argc, char **argv);
    const char *usage;
    const char *summary;
    const char *group; /* heading, printed before the first command of the group */
} command;

static int cmd_version(cli *c, int argc, char **argv);
static int cmd_help(cli *c, int argc, char **argv);
static int run_command(cli *c, int argc, char **argv);

static const command commands[] = {
    {"init", cmd_init, "init [--bare | --bucket] [DIR]", "make an empty repository",
     "start and exchange"},
    {"import", cmd_import,
     "import SRC --as NAME [--parent REV] [--kind KIND] [--suite FILE]... [--no-gate] [-m TEXT]",
     "bring in an HF folder, safetensors, GGUF, PyTorch checkpoint or PEFT adapter", NULL},
    {"export", cmd_export, "export REV DST [--format F] [--dtype D] [--verify] [--modelfile]",
     "write a version out, byte for byte or in another format", NULL},
    {"clone", cmd_clone,
     "clone URL [DIR] [--packs URL] [--bare] [--branch NAME] [--lineage-only | --depth N]",
     "make a repository with the branches of another one", NULL},
    {"remote", cmd_remote,
     "remote [ls | add NAME URL | set-url NAME URL | get-url NAME | show NAME | rename OLD NEW |\n"
     "       rm NAME] [--packs URL] [--json]",
     "names of other repositories", NULL},
    {"fetch", cmd_fetch,
     "fetch [REMOTE [BRANCH | tag NAME]...] [--prune] [--dry-run] [--lineage-only]\n"
     "       | fetch REV [-- PATTERN...]",
     "bring versions of another repository, as origin/NAME", NULL},
    {"pull", cmd_pull, "pull [REMOTE [BRANCH...]] [--prune] [--dry-run] [--lineage-only]",
     "fetch, then make and forward the branches of that name", NULL},
    {"push", cmd_push,
     "push [REMOTE [NAME|SRC:DST|:DST]...] [--all] [--force-with-lease] [--dry-run]",
     "send branches and tags to another repository", NULL},
    {"ls-remote", cmd_ls_remote, "ls-remote [REMOTE|URL [PATTERN...]] [--json]",
     "list another repository's refs", NULL},
    {"log", cmd_log, "log [REV...] [-n N] [--oneline] [--json]", "show versions, newest first",
     "look"},
    {"graph", cmd_graph, "graph [--json]", "draw the family tree of all branches", NULL},
    {"show", cmd_show, "show REV [--json]", "one version: kind, recipe, data, size, tests", NULL},
    {"diff", cmd_diff, "diff A B [--stat] [--json]", "which tensors changed, and by how much",
     NULL},
    {"ls", cmd_ls, "ls [REV[:PATH]] [--json]", "list branches, or what a version holds", NULL},
    {"cat", cmd_cat, "cat REV:PATH [--raw]", "print a file, or a tensor's summary", NULL},
    {"stats", cmd_stats, "stats [--codecs [REV]] [--json]",
     "what is shared, and what the family costs", NULL},
    {"branch", cmd_branch,
     "branch [-r | -a] [--json] | branch NAME REV | branch -d NAME | branch -m OLD NEW",
     "list, make, move or delete branches", "names"},
    {"tag", cmd_tag, "tag [--json] | tag NAME REV | tag -d NAME", "list, make or delete tags",
     NULL},
    {"derive", cmd_derive,
     "derive PARENT --as NAME [--method M] --data FILE [--set KEY=VALUE]... | derive -f FILE",
     "train adapted models, several of one parent at once", "make and test"},
    {"merge", cmd_merge,
     "merge REV REV... --as NAME [--method average|task-arithmetic] [--weight W]... [--lambda L] "
     "[--base REV]",
     "make one version of several, by their weights' sum", NULL},
    {"replay", cmd_replay, "replay REV [--chain] [--json]",
     "train a version again from its recipe, and compare every tensor", NULL},
    {"suite", cmd_suite,
     "suite add BRANCH FILE... | ls REV | show REV SUITE | waive BRANCH SUITE/CASE --reason TEXT\n"
     "       [--until DATE|REV] [--owner NAME] | unwaive BRANCH SUITE/CASE | convert FILE",
     "hang test suites on a branch; excuse a case, with the reason", NULL},
    {"test", cmd_test,
     "test REV... [--descendants|--ancestors] [--suite NAME] [--case NAME] [--slice KEY=VALUE]... "
     "[--against REV]\n"
     "       [--repeat N] [--sequential] [--matrix] [--mode M] [--html F] [--junit F] [--sarif F] "
     "[--json]",
     "run the suites of versions, several as one batch", NULL},
    {"results", cmd_results,
     "results ls REV | results merge PATH|REF [--json] | results lift REV SUITE/CASE",
     "what is kept of tests; another clone's joined to it; an end to a quarantine", NULL},
    {"blame", cmd_blame,
     "blame REV (--case SUITE/CASE | --prompt P --expect E) [--tensors] [--data] [--json]",
     "find the version, the tensors and the examples behind a failure", NULL},
    {"run", cmd_run, "run REV [-p PROMPT] [--raw] [-n N] [--temperature T] [--seed S] [--mode M]",
     "ask a model, or chat with it", "use"},
    {"serve", cmd_serve,
     "serve [REV...] [--pin REV]... [--weights-memory MIB] [--kv-memory MIB]\n"
     "       [--max-running N] [--max-queue N] [--max-models N] [--max-tokens N] [--mode M]\n"
     "       [--port N] [--host H] [--api-key-file FILE]",
     "answer for all models in one batch, OpenAI's HTTP API", NULL},
    {"tokenize", cmd_tokenize, "tokenize REV [--decode]", "JSON lines: text to ids and back",
     "plumbing"},
    {"score", cmd_score, "score REV [--top K] [--mode M]",
     "JSON lines: text or ids to log-probabilities", NULL},
    {"embed", cmd_embed, "embed REV", "JSON lines: text or ids to embeddings", NULL},
    {"classify", cmd_classify, "classify REV", "JSON lines: text or ids to classes", NULL},
    {"upload-pack", cmd_upload_pack, "upload-pack DIR",
     "answer a fetch on standard input and output", NULL},
    {"receive-pack", cmd_receive_pack, "receive-pack DIR", "likewise, a push", NULL},
    {"fsck", cmd_fsck,
     "fsck [--quick | --verify-oldest N] [--rebuild-index] [--repair FROM] [--json]",
     "verify everything", NULL},
    {"gc", cmd_gc, "gc [--dry-run] [--prune TIME|now] [--reflog TIME] [--json]",
     "delete what nothing reaches, after its grace period", NULL},
    {"repack", cmd_repack,
     "repack [--all] [--depth N] [--slow] [--pack-size MIB] [--dry-run] [--json]",
     "make packs few, shorten delta chains, code anew", NULL},
    {"devices", cmd_devices, "devices [--json]",
     "what --device can name here, and why CUDA is not there", NULL},
    {"version", cmd_version, "version", "version and build", NULL},
    {"help", cmd_help, "help [COMMAND]", "this list, or a command's options", NULL},
};

static int cmd_version(cli *c, int argc, char **argv)
{
    (void)c;
    (void)argc;
    (void)argv;
    printf("fmstore %s\n", FM_VERSION);
    return EXIT_YES;
}

static void print_help(FILE *to)
{
    fprintf(to, "usage: fmstore [-C DIR] [--threads N] [--ranks N [--stages S]] <command> [...]\n");
    for (size_t i = 0; i < FM_ARRAY_LEN(commands); i++) {
        if (commands[i].group)
            fprintf(to, "\n%s\n", commands[i].group);
        fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(to, "\n-C DIR works as if started in DIR; --threads N uses N CPUs (default: all);\n"
                "--ranks N splits models (derive: batches) over N processes, as mpirun does;\n"
                "--stages S (--pipeline-parallel-size) deals their layers to S stages of N / S\n"
                "ranks (--tensor-parallel-size; derive: which share the batches).\n"
                "'fmstore <command> -h' lists a command's options.\n");
}

static int cmd_help(cli *c, int argc, char **argv)
{
    static char short_help[] = "-h";
    if (argc > 1 && strcmp(argv[1], "help") != 0 && argv[1][0] != '-') {
        char *asked[] = {argv[1], short_help, NULL};
        return run_command(c, 2, asked);
    }
    print_help(stdout);
    return EXIT_YES;
}

static int usage_error(const char *what, const char *arg)
{
    fprintf(stderr, "fmstore: %s '%s'; 'fmstore help' lists the commands\n", what, arg);
    return EXIT_USAGE;
}

/* Enters -C DIR, so that relative paths of the command start there too, as in git. A rank that
 * another process started is there already. */
static int enter_dir(const char *dir)
{
    uint32_t rank, size;
    bool launched;
    fm_ranks_place(&rank, &size, &launched);
    if (launched || chdir(dir) == 0)
        return 0;
    fprintf(stderr, "fmstore: -C '%s': %s\n", dir, strerror(errno));
    return EXIT_FAILURE_128;
}

static int take_number(unsigned *out, const char *option, unsigned long most, const char *word)
{
    char *end;
    unsigned long n = strtoul(word, &end, 10);
    if (end == word || *end || word[0] == '-' || n > most) {
        fprintf(stderr,
                "fmstore: %s wants a number up to %lu, got '%s'; 'fmstore help' lists the "
                "commands\n",
                option, most, word);
        return EXIT_USAGE;
    }
    *out = (unsigned)n;
    return 0;
}

/* The member that a global option with a number sets; NULL: option is no such option. */
static unsigned *number_of(cli *c, const char *option, unsigned long *most)
{
    *most = strcmp(option, "--threads") == 0 ? 4096 : FM_COMM_MAX_RANKS;
    if (strcmp(option, "--threads") == 0)
        return &c->threads;
    if (strcmp(option, "--ranks") == 0)
        return &c->ranks;
    if (strcmp(option, "--stages") == 0 || strcmp(option, "--pipeline-parallel-size") == 0)
        return &c->stages;
    return strcmp(option, "--tensor-parallel-size") == 0 ? &c->split : NULL;
}

static int take_global(cli *c, const char *option, const char *value)
{
    unsigned long most = 0;
    unsigned *number = number_of(c, option, &most);
    return number ? take_number(number, option, most, value) : enter_dir(value);
}

/* Reads the options before the command. Returns the command's index in argv, or -1 - exit code. */
static int global_options(cli *c, int argc, char **argv)
{
    int i = 1;
    unsigned long most;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "-C") == 0 || number_of(c, argv[i], &most)) {
            if (i + 1 == argc)
                return -1 - usage_error("a value is missing after", argv[i]);
            int code = take_global(c, argv[i], argv[i + 1]);
            if (code)
                return -1 - code;
            i++;
        } else if (strcmp(argv[i], "--version") == 0) {
            return -1 - cmd_version(c, 0, NULL);
        } else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            return -1 - cmd_help(c, 0, NULL);
        } else {
            return -1 - usage_error("unknown option", argv[i]);
        }
    }
    if (fmo_ranks_settle(c) != FM_OK) {
        fprintf(stderr, "fmstore: %s\n", fm_error_text());
        return -1 - EXIT_USAGE;
    }
    return i;
}

static int run_command(cli *c, int argc, char **argv)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(commands); i++) {
        if (strcmp(argv[0], commands[i].name) == 0) {
            cli_running = (cli_command){commands[i].usage, commands[i].summary};
            return commands[i].run(c, argc, argv);
        }
    }
    return usage_error("no such command:", argv[0]);
}

/* Runs a rank other than 0. It ignores Ctrl-C: it ends when rank 0 ends. */
static int follow(cli *c)
{
    (void)signal(SIGINT, SIG_IGN);
    return cli_exit(fmo_ranks_follow(c));
}

int main(int argc, char **argv)
{
    cli c = {.dir = ".", .argv = argv, .ui = cli_ui};
    /* ulimit -f: a write then fails with an error, and is cleaned up */
    (void)signal(SIGXFSZ, SIG_IGN);
    int at = global_options(&c, argc, argv);
    int code = at < 0 ? -1 - at : EXIT_USAGE;
    if (at == argc)
        print_help(stderr);
    else if (at > 0 && fmo_ranks_mine() > 0 && strcmp(argv[at], "derive") != 0)
        code = follow(&c);
    else if (at > 0)
        code = run_command(&c, argc - at, argv + at);
    fm_ops_close(&c);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("fmstore: standard output: could not write everything; is the disk full?\n", stderr);
        return EXIT_FAILURE_128;
    }
    return code;
}
