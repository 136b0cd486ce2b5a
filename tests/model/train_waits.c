/* ctest: card=long apart */
/* train_waits.c - how often a step of training waits for the device: each wait drains what is
 * queued, and the device stands still until the host has said what comes next.
 *
 * A wait is a download, a sync, a wait for a fetch, memory taken or given back, or an upload that
 * is too large for the ring of a GPU's small ones. */
#include "infer/model.h"
#include "tests/model/train_kit.h"

#define STEPS 3u
#define CHILDREN 8u
#define LARGE_BYTES ((size_t)1 << 20)

static struct {
    fm_backend real;
    uint64_t downloads, syncs, waits, memory, large;
    uint64_t uploads;
} seen;

static fm_status seen_download(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    seen.downloads++;
    return seen.real.download(be, dst, src, bytes);
}

static fm_status seen_sync(fm_backend *be)
{
    seen.syncs++;
    return seen.real.sync(be);
}

static fm_status seen_wait(fm_backend *be, uint64_t ticket)
{
    seen.waits++;
    return seen.real.wait(be, ticket);
}

static fm_status seen_upload(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    seen.uploads++;
    seen.large += bytes > LARGE_BYTES;
    return seen.real.upload(be, dst, src, bytes);
}

static fm_status seen_alloc(fm_backend *be, void **out, size_t bytes)
{
    seen.memory++;
    return seen.real.alloc(be, out, bytes);
}

static void seen_free(fm_backend *be, void *ptr)
{
    seen.memory++;
    seen.real.free(be, ptr);
}

static uint64_t all_waits(void)
{
    return seen.downloads + seen.syncs + seen.waits + seen.memory + seen.large;
}

static void watch(fm_backend *be)
{
    memset(&seen, 0, sizeof(seen));
    seen.real = *be;
    be->download = seen_download;
    be->sync = seen_sync;
    be->wait = be->wait ? seen_wait : NULL;
    be->upload = seen_upload;
    be->alloc = seen_alloc;
    be->free = seen_free;
}

static void watch_no_more(fm_backend *be)
{
    be->download = seen.real.download;
    be->sync = seen.real.sync;
    be->wait = seen.real.wait;
    be->upload = seen.real.upload;
    be->alloc = seen.real.alloc;
    be->free = seen.real.free;
}

typedef struct counts {
    uint64_t waits[STEPS], uploads[STEPS]; /* until the step's report */
} counts;

static bool note(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    counts *c = ctx;
    (void)n;
    (void)drop;
    c->waits[p->step] = all_waits();
    c->uploads[p->step] = seen.uploads;
    return false;
}

typedef struct wait_case {
    const char *name;
    fm_method method;
    const char *set; /* "key=value key=value" */
    uint32_t children;
    uint64_t most; /* waits of a step */
} wait_case;

static void configure(fm_train_config *c, const wait_case *w, uint32_t child)
{
    char word[128];
    *c = fm_train_defaults(w->method);
    c->schedule = FM_SCHEDULE_CONSTANT;
    c->steps = STEPS;
    c->max_tokens = 24;
    c->seed = child;
    for (const char *s = w->set; *s;) {
        size_t n = strcspn(s, " ");
        (void)snprintf(word, sizeof(word), "%.*s", (int)n, s);
        char *eq = strchr(word, '=');
        *eq = '\0';
        tk_ok(fm_train_config_set(c, word, eq + 1));
        s += n + (s[n] == ' ');
    }
}

/* Records of the objective. */
static void put_text(fm_buf *text, const char *path, const char *set)
{
    static const char *const of[] = {"amber", "birch", "cedar"};
    if (!strstr(set, "objective="))
        tk_ok(fm_read_file(text, path, 1u << 20));
    for (int i = 0; strstr(set, "dpo") && i < 12; i++)
        fm_buf_printf(text, "{\"prompt\":\"the %s\",\"chosen\":\" is %d\",\"rejected\":\" no\"}\n",
                      of[i % 3], i);
    for (int i = 0; strstr(set, "classify") && i < 12; i++)
        fm_buf_printf(text, "{\"text\":\"%d of %s\",\"label\":%d}\n", i, of[i % 3], i % 3);
    for (int i = 0; strstr(set, "contrastive") && i < 12; i++)
        fm_buf_printf(text, "{\"anchor\":\"the %s %d\",\"positive\":\"%d is %s\"}\n", of[i % 3], i,
                      i, of[i % 3]);
    tk_ok(fm_buf_ok(text));
}

/* The most that a step behind the first waits, and uploads. */
static void train_watched(fm_engine *e, const fm_provider *p, const fm_train_job *job, size_t n,
                          fm_train_result *result, uint64_t *waits, uint64_t *uploads)
{
    counts c;
    watch(fm_engine_backend(e));
    tk_ok(fm_train_run(e, p, job, n, result, note, &c));
    watch_no_more(fm_engine_backend(e));
    *waits = *uploads = 0;
    for (uint32_t s = 1; s < STEPS; s++) {
        *waits = FM_MAX(*waits, c.waits[s] - c.waits[s - 1]);
        *uploads = FM_MAX(*uploads, c.uploads[s] - c.uploads[s - 1]);
    }
}

static void run_case(const wait_case *w, uint64_t *waits, uint64_t *uploads)
{
    char *path = tk_source("examples/atlas/base"),
         *text_path = tk_source("examples/atlas/clerk.jsonl");
    fm_source *src = NULL;
    fm_train_job job[CHILDREN];
    fm_train_result result[CHILDREN];
    fm_dataset *data[CHILDREN] = {NULL};
    fm_buf text;
    fm_engine *e = ik_engine(1, 64);
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    fm_model *m = ik_model(e, src, "atlas");
    fm_buf_init(&text, 1u << 20);
    put_text(&text, text_path, w->set);
    for (uint32_t i = 0; i < w->children; i++) {
        job[i] = (fm_train_job){.name = w->name, .parent = fm_source_tree(src)};
        configure(&job[i].config, w, i);
        tk_ok(fm_dataset_open(&data[i], fm_buf_span(&text), "clerk", fm_model_tokenizer(m),
                              fm_model_chat_template(m), &job[i].config, NULL, 0));
        job[i].data = data[i];
    }
    train_watched(e, &p, job, w->children, result, waits, uploads);
    for (uint32_t i = 0; i < w->children; i++) {
        assert_true(fm_json_count(result[i].log) == STEPS);
        fm_train_result_release(&result[i]);
        fm_dataset_close(data[i]);
    }
    fm_buf_release(&text);
    fm_model_close(m);
    fm_source_close(src);
    fm_engine_free(e);
    fm_free(path);
    fm_free(text_path);
}

TEST(a_step_waits_once)
{
    static const wait_case cases[] = {
        {"lora", FM_METHOD_LORA, "r=4 batch=2", 1, 1},
        {"lora, 4 micro-batches", FM_METHOD_LORA, "r=4 batch=1 accumulate=4", 1, 1},
        {"lora, 2 shards", FM_METHOD_LORA, "r=4 batch=2 shards=2", 1, 1},
        {"full", FM_METHOD_FULL, "batch=1 max_tokens=20", 1, 1},
        {"8 lora in one pass", FM_METHOD_LORA, "r=2 batch=1", CHILDREN, 1},
        {"ia3", FM_METHOD_IA3, "batch=1", 1, 1},
        {"prefix", FM_METHOD_PREFIX, "batch=1", 1, 1},
        {"classify", FM_METHOD_LORA, "objective=classify r=2 batch=2", 1, 1},
        /* The host computes what goes back: one more for each pass. */
        {"dpo", FM_METHOD_LORA, "objective=dpo r=2 batch=2", 1, 2},
        {"contrastive", FM_METHOD_LORA, "objective=contrastive pooling=mean r=2 batch=2", 1, 2},
        {"dora", FM_METHOD_LORA, "r=2 batch=1 dora=true", 1, 3}, /* its norms are the host's */
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        uint64_t waits, uploads;
        run_case(&cases[i], &waits, &uploads);
        print_message("%s: %llu waits and %llu uploads a step (of the last run: %llu downloads, "
                      "%llu syncs, %llu waits, memory %llu, large %llu)\n",
                      cases[i].name, (unsigned long long)waits, (unsigned long long)uploads,
                      (unsigned long long)seen.downloads, (unsigned long long)seen.syncs,
                      (unsigned long long)seen.waits, (unsigned long long)seen.memory,
                      (unsigned long long)seen.large);
        assert_true(waits <= cases[i].most);
    }
}

/* GPT-2 stores its matrices [in, out]: a device that the host cannot see turns them itself. */
TEST(matrices_are_turned_where_they_are)
{
    enum { ROWS = 2, TOKENS = 8, ALL = (int)STEPS * ROWS * TOKENS };
    int32_t ids[ALL], labels[ALL];
    char *path = tk_source("tests/model/golden/objectives/classify-gpt2");
    fm_source *src = NULL;
    fm_train_result result;
    uint64_t waits, uploads;
    fm_engine *e = ik_engine(1, 64);
    bool seen_by_host = fm_engine_backend(e)->host_visible;
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    for (int32_t i = 0; i < ALL; i++) {
        ids[i] = 3 + i % 20;
        labels[i] = i / TOKENS % 3; /* read of a row's first */
    }
    fm_train_job job = {.name = "gpt2",
                        .parent = fm_source_tree(src),
                        .config = fm_train_defaults(FM_METHOD_FULL),
                        .batch_ids = ids,
                        .batch_labels = labels};
    job.config.objective = FM_OBJECTIVE_CLASSIFY;
    job.config.steps = STEPS;
    job.config.batch = ROWS;
    job.config.max_tokens = TOKENS;
    train_watched(e, &p, &job, 1, &result, &waits, &uploads);
    print_message("gpt2, full: %llu waits a step\n", (unsigned long long)waits);
    assert_true(waits <= 1 || seen_by_host);
    fm_train_result_release(&result);
    fm_source_close(src);
    fm_engine_free(e);
    fm_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_waits_once),
        cmocka_unit_test(matrices_are_turned_where_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
