/* fault_kit.c - the world of the fault tests. */
#include "tests/fault/kit/fault_kit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/base/math/rng.h"

enum { LIMIT_SECONDS = 120, HIDDEN = 64, VOCAB = 1024, LAYERS = 1, SAID_BYTES = 2000 };

static char said[SAID_BYTES];

const char *fk_said(void)
{
    return said;
}

unsigned fk_scaled(unsigned n)
{
#if defined(__SANITIZE_ADDRESS__)
    return (n + 7) / 8;
#else
    return n;
#endif
}

bool fk_available(void)
{
    const char *program = getenv("FM_BIN"), *inject = getenv("FM_INJECT");

    if (program && inject && fm_path_exists(program) && fm_path_exists(inject))
        return true;
    printf("skip: FM_BIN and FM_INJECT must name the program and the injector\n");
    return false;
}

/* ==== files ================================================================================ */

static void copy_file(const char *from, const char *to)
{
    static char block[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t n;

    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(block, 1, sizeof block, in)) > 0)
        assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

void fk_copy_tree(const char *from, const char *to)
{
    fm_names names;

    assert_int_equal(mkdir(to, 0777), 0);
    tk_ok(fm_list_dir(&names, from));
    for (size_t i = 0; i < names.count; i++) {
        char *a = fm_path_join(from, names.name[i]), *b = fm_path_join(to, names.name[i]);
        if (fm_path_is_dir(a))
            fk_copy_tree(a, b);
        else
            copy_file(a, b);
        fm_free(a);
        fm_free(b);
    }
    fm_names_release(&names);
}

void fk_age(const char *dir)
{
    struct timespec hours_ago[2] = {{0, 0}, {0, 0}};
    fm_names names;

    clock_gettime(CLOCK_REALTIME, &hours_ago[0]);
    hours_ago[0].tv_sec -= 7200;
    hours_ago[1] = hours_ago[0];
    tk_ok(fm_list_dir(&names, dir));
    for (size_t i = 0; i < names.count; i++) {
        char *path = fm_path_join(dir, names.name[i]);
        if (fm_path_is_dir(path))
            fk_age(path);
        else
            utimensat(AT_FDCWD, path, hours_ago, AT_SYMLINK_NOFOLLOW);
        fm_free(path);
    }
    fm_names_release(&names);
}

void fk_reset(fk_world *w)
{
    tk_ok(fm_remove_tree(w->work));
    fk_copy_tree(w->sound, w->work);
}

static void put_file(const fk_world *w, const char *name, const void *data, size_t len)
{
    char *path = fm_path_join(w->dir, name);
    tk_ok(fm_write_file(path, data, len));
    fm_free(path);
}

/* ==== a model small enough to be stored some thousand times ================================ */

typedef struct st_file {
    fm_buf head, body;
    uint64_t seed, tensors;
} st_file;

/* BF16 of about normal values; every 97th differs where seed does. */
static void add_tensor(st_file *f, const char *name, unsigned rows, unsigned cols)
{
    uint64_t elems = (uint64_t)rows * (cols ? cols : 1), begin = f->body.len;

    for (uint64_t i = 0; i < elems; i++) {
        uint64_t seed = i % 97 == 5 ? f->seed : 1;
        float x = (float)fm_rng_normal(seed, f->tensors, i) * 0.05f + (cols ? 0.0f : 1.0f);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t top = (uint16_t)(bits >> 16);
        fm_buf_append(&f->body, &top, sizeof top);
    }
    fm_buf_printf(&f->head, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%u", f->tensors ? "," : "{",
                  name, rows);
    if (cols)
        fm_buf_printf(&f->head, ",%u", cols);
    fm_buf_printf(&f->head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                  (unsigned long long)f->body.len);
    f->tensors++;
}

static void add_layer(st_file *f, unsigned layer)
{
    static const struct {
        const char *name;
        unsigned rows, cols;
    } part[] = {{"input_layernorm", HIDDEN, 0},          {"mlp.down_proj", HIDDEN, 2 * HIDDEN},
                {"mlp.gate_proj", 2 * HIDDEN, HIDDEN},   {"mlp.up_proj", 2 * HIDDEN, HIDDEN},
                {"post_attention_layernorm", HIDDEN, 0}, {"self_attn.k_proj", HIDDEN / 2, HIDDEN},
                {"self_attn.o_proj", HIDDEN, HIDDEN},    {"self_attn.q_proj", HIDDEN, HIDDEN},
                {"self_attn.v_proj", HIDDEN / 2, HIDDEN}};
    char name[128];

    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, part[i].name);
        add_tensor(f, name, part[i].rows, part[i].cols);
    }
}

static void put_model(const fk_world *w, const char *folder, uint64_t seed)
{
    static const char config[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":1024,"
        "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
        "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
        "\"hidden_act\":\"silu\",\"attention_bias\":false,\"mlp_bias\":false,"
        "\"tie_word_embeddings\":true,\"bos_token_id\":0,\"eos_token_id\":4,\"pad_token_id\":0,"
        "\"torch_dtype\":\"bfloat16\"}\n";
    static const char *const file[] = {"chat_template.jinja", "tokenizer.json",
                                       "tokenizer_config.json"};
    st_file f = {.seed = seed};
    char name[256];

    fm_buf_init(&f.head, 0);
    fm_buf_init(&f.body, 0);
    add_tensor(&f, "model.embed_tokens.weight", VOCAB, HIDDEN);
    for (unsigned l = 0; l < LAYERS; l++)
        add_layer(&f, l);
    add_tensor(&f, "model.norm.weight", HIDDEN, 0);
    fm_buf_printf(&f.head, "}");
    while (f.head.len % 8)
        fm_buf_printf(&f.head, " ");
    fm_buf whole;
    fm_buf_init(&whole, 0);
    uint64_t len = f.head.len;
    fm_buf_append(&whole, &len, sizeof len);
    fm_buf_append(&whole, f.head.data, f.head.len);
    fm_buf_append(&whole, f.body.data, f.body.len);
    tk_ok(fm_buf_ok(&whole));
    char *dir = fm_path_join(w->dir, folder);
    tk_ok(fm_make_dirs(dir));
    snprintf(name, sizeof name, "%s/model.safetensors", folder);
    put_file(w, name, whole.data, whole.len);
    snprintf(name, sizeof name, "%s/config.json", folder);
    put_file(w, name, config, sizeof config - 1);
    for (size_t i = 0; i < FM_ARRAY_LEN(file); i++) {
        snprintf(name, sizeof name, "examples/atlas/base/%s", file[i]);
        char *from = tk_source(name), *to = fm_path_join(dir, file[i]);
        copy_file(from, to);
        fm_free(from);
        fm_free(to);
    }
    fm_free(dir);
    fm_buf_release(&f.head);
    fm_buf_release(&f.body);
    fm_buf_release(&whole);
}

/* ==== running ============================================================================== */

static void set_number(const char *name, uint64_t n)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    setenv(name, text, 1);
}

static void become(const fk_world *w, const fk_command *c, const fk_fate *fate, const char *out)
{
    const char *argv[32] = {getenv("FM_BIN"), "-C", w->work, "--threads", "1"};
    char path[8][1024];
    size_t n = 5, used = 0;

    for (size_t i = 0; c->argv[i]; i++) {
        argv[n] = c->argv[i];
        if (c->argv[i][0] == '@') {
            snprintf(path[used], sizeof path[0], "%s/%s", w->dir, c->argv[i] + 1);
            argv[n] = path[used++];
        }
        n++;
    }
    int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(126);
    if (fate) {
        setenv("FM_FAULT_ROOT", w->work, 1);
        setenv("FM_FAULT_NOSYNC", "1", 1);
        set_number("FM_FAULT_AT", fate->at);
        set_number("FM_FAULT_FOREVER", fate->forever);
        set_number("FM_FAULT_DATA", fate->data);
        if (fate->how)
            setenv("FM_FAULT_HOW", fate->how, 1);
        if (fate->log)
            setenv("FM_FAULT_LOG", fate->log, 1);
        setenv("LD_PRELOAD", getenv("FM_INJECT"), 1);
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
    }
    alarm(LIMIT_SECONDS);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(126);
}

static void read_said(const char *path)
{
    FILE *in = fopen(path, "rb");
    size_t n = in ? fread(said, 1, sizeof said - 1, in) : 0;
    said[n] = '\0';
    if (in)
        fclose(in);
}

static int run(const fk_world *w, const fk_command *c, const fk_fate *fate, uint64_t kill_us)
{
    char *out = fm_path_join(w->dir, "said");
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();

    if (pid == 0)
        become(w, c, fate, out);
    assert_true(pid > 0);
    if (kill_us) {
        struct timespec t = {(time_t)(kill_us / 1000000), (long)(kill_us % 1000000) * 1000};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    read_said(out);
    fm_free(out);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int fk_run(const fk_world *w, const fk_command *c, const fk_fate *fate)
{
    return run(w, c, fate, 0);
}

int fk_run_until(const fk_world *w, const fk_command *c, uint64_t us)
{
    fk_fate none = {0};
    return run(w, c, &none, FM_MAX(us, (uint64_t)1));
}

static void must(const fk_world *w, const fk_command *c)
{
    int code = fk_run(w, c, NULL);
    if (code != 0)
        print_error("%s: exit %d: %s\n", c->name, code, said);
    assert_int_equal(code, 0);
}

/* ==== the world ============================================================================ */

static const char suite_text[] = "suite: silent\n"
                                 "description: \"nothing that no model says\"\n"
                                 "gate: true\n"
                                 "generate: {max-tokens: 4}\n"
                                 "cases:\n"
                                 "  - name: one\n"
                                 "    prompt: \"a\"\n"
                                 "    expect: {\"not-contains\": \"qqqqqqqqqqqqqqqqqqqqqqqq\"}\n";
static const char data_text[] = "{\"text\": \"the river runs\"}\n{\"text\": \"the city stands\"}\n";

static const fk_command setup[] = {
    {.name = "init", .argv = {"init", "."}},
    {.name = "import base",
     .argv = {"import", "@base", "--as", "base", "--suite", "@silent.yaml", "--no-gate"}},
    {.name = "import old",
     .argv = {"import", "@old", "--as", "old", "--parent", "base", "--no-gate"}},
    {.name = "import gone", .argv = {"import", "@gone", "--as", "gone", "--no-gate"}},
    {.name = "tag", .argv = {"tag", "first", "base"}},
    {.name = "branch", .argv = {"branch", "side/way", "base"}},
    {.name = "import junk", .argv = {"import", "@junk", "--as", "junk", "--no-gate"}},
    {.name = "branch -d junk", .argv = {"branch", "-d", "junk"}},
    {.name = "gc", .argv = {"gc", "--reflog", "now"}, .optional = true}, /* its first phase */
};

static const fk_command changes[] = {
    {.name = "import", .argv = {"import", "@new", "--as", "new", "--no-gate"}},
    {.name = "import --parent",
     .argv = {"import", "@child", "--as", "deep/child", "--parent", "old", "--no-gate"}},
    {.name = "suite add", .argv = {"suite", "add", "old", "@other.yaml"}},
    {.name = "tag", .argv = {"tag", "second/one", "old"}},
    {.name = "branch", .argv = {"branch", "lane/one", "base"}},
    {.name = "branch -d", .argv = {"branch", "-d", "gone"}},
    {.name = "test", .argv = {"test", "base"}},
    {.name = "derive",
     .argv = {"derive", "base", "--as", "tuned", "--data", "@data.jsonl", "--set", "r=1", "--set",
              "steps=1", "--set", "batch=1", "--set", "max_tokens=8", "--no-gate"}},
    {.name = "gc", .argv = {"gc", "--prune", "now", "--reflog", "now"}, .optional = true},
    {.name = "repack", .argv = {"repack", "--all", "--prune", "now"}, .optional = true},
};

static bool is_known(const fk_world *w, const fk_command *c)
{
    fk_command help = {.argv = {"help", c->argv[0]}};
    return !c->optional || fk_run(w, &help, NULL) == 0;
}

void fk_use_memory(void)
{
    struct statvfs v;

    if (!getenv("TMPDIR") && statvfs("/dev/shm", &v) == 0 &&
        (uint64_t)v.f_bavail * v.f_bsize > (uint64_t)512 << 20)
        setenv("TMPDIR", "/dev/shm", 1);
}

void fk_world_make(fk_world *w)
{
    memset(w, 0, sizeof *w);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    setenv("GIT_AUTHOR_NAME", "Ada Test", 1);
    setenv("GIT_AUTHOR_EMAIL", "ada@example.org", 1);
    fk_use_memory();
    w->dir = tk_scratch();
    w->sound = fm_path_join(w->dir, "sound");
    w->work = fm_path_join(w->dir, "work");
    put_model(w, "base", 1);
    put_model(w, "old", 2);
    put_model(w, "gone", 3);
    put_model(w, "new", 4);
    put_model(w, "child", 5);
    put_model(w, "junk", 6);
    put_file(w, "silent.yaml", suite_text, sizeof suite_text - 1);
    put_file(w, "data.jsonl", data_text, sizeof data_text - 1);
    char other[sizeof suite_text + 16];
    snprintf(other, sizeof other, "suite: other\n%s", strchr(suite_text, '\n') + 1);
    put_file(w, "other.yaml", other, strlen(other));
    tk_ok(fm_make_dirs(w->work));
    for (size_t i = 0; i < FM_ARRAY_LEN(setup); i++)
        if (is_known(w, &setup[i]))
            must(w, &setup[i]);
    fk_copy_tree(w->work, w->sound);
    fk_refs_of(&w->before, w->sound);
    w->command = fm_calloc(FM_ARRAY_LEN(changes), sizeof *w->command);
    assert_non_null(w->command);
    for (size_t i = 0; i < FM_ARRAY_LEN(changes); i++)
        if (is_known(w, &changes[i]))
            w->command[w->commands++] = changes[i];
}

void fk_world_free(fk_world *w)
{
    for (size_t i = 0; i < w->commands; i++) {
        fm_free(w->command[i].kind);
        fm_free(w->command[i].len);
        fm_free(w->command[i].foreign);
        fm_free(w->command[i].first);
    }
    fm_free(w->command);
    fm_free(w->sound);
    fm_free(w->work);
    fm_free(w->dir);
    memset(w, 0, sizeof *w);
}

/* What is done to which sort of file: a hash of the kind, the folder without its hex digits and
 * what follows the last dot of the name. */
static uint64_t sort_of(const rec *r, const char *path)
{
    const char *name = strrchr(path, '/'), *dot = strrchr(path, '.');
    uint64_t h = 14695981039346656037u ^ r->kind;

    for (const char *p = path; *p; p++)
        if (p < name ? !strchr("0123456789abcdef", *p) : dot > name && p >= dot)
            h = (h ^ (uint8_t)*p) * 1099511628211u;
    return h;
}

static void read_calls(fk_command *c, const char *log)
{
    static uint64_t sort[FK_MAX_CALLS]; /* of all commands that were learnt */
    static size_t sorts;
    FILE *in = fopen(log, "rb");
    rec r;

    assert_non_null(in);
    c->kind = fm_calloc(FK_MAX_CALLS, sizeof *c->kind);
    c->len = fm_calloc(FK_MAX_CALLS, sizeof *c->len);
    c->foreign = fm_calloc(FK_MAX_CALLS, sizeof *c->foreign);
    c->first = fm_calloc(FK_MAX_CALLS, sizeof *c->first);
    assert_true(c->kind && c->len && c->foreign && c->first);
    while (fread(&r, sizeof r, 1, in) == 1) {
        assert_int_equal(r.magic, REC_MAGIC);
        assert_in_range(r.nth, 1, FK_MAX_CALLS);
        char path[8192] = "";
        assert_in_range(r.path_len, 1, sizeof path - 1);
        assert_int_equal(fread(path, 1, r.path_len, in), r.path_len);
        assert_int_equal(fseek(in, (long)r.path2_len, SEEK_CUR), 0);
        c->foreign[r.nth - 1] = strstr(path, "/lineage.git/") || strstr(path, ".sqlite");
        size_t i = 0;
        while (i < sorts && sort[i] != sort_of(&r, path))
            i++;
        c->first[r.nth - 1] = i == sorts;
        assert_true(i < FK_MAX_CALLS);
        if (i == sorts)
            sort[sorts++] = sort_of(&r, path);
        c->kind[r.nth - 1] = r.kind;
        c->len[r.nth - 1] = r.len;
        c->calls = FM_MAX(c->calls, (size_t)r.nth);
    }
    fclose(in);
}

void fk_learn(fk_world *w, fk_command *c)
{
    char *log = fm_path_join(w->dir, "calls");
    fk_fate fate = {.log = log};

    tk_ok(fm_remove_file(log));
    fk_reset(w);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int code = fk_run(w, c, &fate);
    clock_gettime(CLOCK_MONOTONIC, &b);
    c->us = (uint64_t)((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000);
    if (code != 0)
        print_error("%s: exit %d: %s\n", c->name, code, said);
    assert_int_equal(code, 0);
    read_calls(c, log);
    fk_refs_of(&c->after, w->work);
    const char *wrong = fk_wrong(w->work, &w->before, &c->after, true);
    if (*wrong)
        print_error("%s, undisturbed: %s\n", c->name, wrong);
    assert_true(*wrong == '\0');
    fm_free(log);
}
