/* ctest: apart */
/* train_attribution.c - which examples: products against explicit gradients, the damped matrix
 * against a dense solve, BM25 and eigenvalues against recorded numbers, training again against a
 * run of its own, and the same bits with any number of threads. */
#include "tests/model/train_kit.h"
#include "tests/kit/train_kit.h"

#include <math.h>
#include <string.h>

#include "train/attribution/walk.h"

enum { N = 6, LEN = 12 };

typedef struct stage {
    fm_source *base, *adapter;
    fm_tree *both;
    ik_mem mem;
    fm_provider p;
    fm_dataset *data;
    fm_train_job job;
    fm_train_result result; /* FULL */
    fm_attribution_in in;
} stage;

static fm_dataset *six_blocks(const fm_train_config *c, const uint32_t *skip, size_t skips)
{
    static const char text[] = "the cat sat.one two six.A-B-C-D-E-F-0123456789ab"
                               "zzzzzzzzzzzz{}[]()<>!?;:";
    fm_tokenizer *tok = kit_tokenizer();
    fm_dataset *d = NULL;

    tk_ok(fm_dataset_open(&d, fm_span_str(text), "blocks", tok, NULL, c, skip, skips));
    fm_tokenizer_close(tok);
    return d;
}

static fm_train_config config_of(fm_method method)
{
    fm_train_config c = fm_train_defaults(method);

    c.r = 4;
    c.alpha = 8;
    (void)snprintf(c.targets, sizeof(c.targets), "all-linear");
    c.lr = 2e-3;
    c.batch = 2;
    c.epochs = 1.0;
    c.max_tokens = LEN;
    return c;
}

static void put_result(ik_mem *mem, fm_tree *tree, const fm_train_result *r)
{
    for (size_t i = 0; i < r->count; i++) {
        float *f = fm_memdup(r->tensors[i].data, (size_t)r->tensors[i].bytes);
        ik_put(mem, tree, "tensors", r->tensors[i].name, f, r->tensors[i].shape.rank,
               r->tensors[i].shape.dim[0], r->tensors[i].shape.dim[1]);
        fm_free(f);
    }
}

static void stage_open(stage *s, fm_method method)
{
    memset(s, 0, sizeof(*s));
    s->base = ik_source("arch/llama");
    s->mem.behind[0] = fm_source_provider(s->base);
    s->mem.behind_count = 1;
    s->job = (fm_train_job){
        .name = "step", .config = config_of(method), .parent = fm_source_tree(s->base)};
    s->data = six_blocks(&s->job.config, NULL, 0);
    assert_int_equal(fm_dataset_count(s->data), N);
    s->job.data = s->data;
    if (method == FM_METHOD_LORA) {
        s->adapter = ik_source("arch/llama/peft/lora");
        tk_ok(fm_adapter_apply(&s->both, fm_source_tree(s->base), fm_source_tree(s->adapter),
                               "llama", NULL));
        s->mem.behind[1] = fm_source_provider(s->adapter);
        s->mem.behind_count = 2;
    } else {
        fm_engine *e = ik_engine(2, 64);
        fm_provider p = fm_source_provider(s->base);
        tk_ok(fm_train_run(e, &p, &s->job, 1, &s->result, NULL, NULL));
        tk_ok(fm_tree_copy(&s->both, fm_source_tree(s->base)));
        put_result(&s->mem, s->both, &s->result);
        fm_engine_free(e);
    }
    s->p = ik_provider(&s->mem);
    s->in = (fm_attribution_in){.p = &s->p,
                                .job = &s->job,
                                .child = s->both,
                                .wrong = fm_dataset_at(s->data, 1),
                                .right = fm_dataset_at(s->data, 4)};
}

static void stage_close(stage *s)
{
    fm_train_result_release(&s->result);
    fm_dataset_close(s->data);
    fm_tree_free(s->both);
    ik_mem_free(&s->mem);
    if (s->adapter)
        fm_source_close(s->adapter);
    fm_source_close(s->base);
}

/* Gradient of the sum over targets, by the public call, one example at a time. */
static void explicit_gradient(const stage *s, const fm_tree *tree, const fm_example *e,
                              fm_train_result *g, double *loss)
{
    double targets = 0.0;

    for (uint32_t i = 1; i < e->len; i++)
        targets += e->labels[i] >= 0;
    tk_ok(fm_train_gradients(s->in.e, tree, s->in.p, e->ids, e->labels, 1, e->len, loss, g));
    *loss *= targets;
    for (size_t t = 0; t < g->count; t++) {
        float *f = (float *)(uintptr_t)g->tensors[t].data;
        for (size_t i = 0; i < g->tensors[t].bytes / sizeof(float); i++)
            f[i] = (float)((double)f[i] * targets);
    }
}

static double product(const fm_train_result *a, const fm_train_result *b)
{
    double sum = 0.0;

    assert_int_equal(a->count, b->count);
    for (size_t t = 0; t < a->count; t++) {
        const float *x = (const float *)(const void *)a->tensors[t].data;
        const float *y = (const float *)(const void *)b->tensors[t].data;
        for (size_t i = 0; i < a->tensors[t].bytes / sizeof(float); i++)
            sum += (double)x[i] * (double)y[i];
    }
    return sum;
}

static void products_of(fm_method method)
{
    stage s;
    fm_train_result g[N] = {0};
    double have[N];
    double loss;
    double *score[FM_ATTRIBUTIONS] = {[FM_ATTR_DOT] = have};

    stage_open(&s, method);
    s.in.e = ik_engine(2, 64);
    tk_ok(fm_attribution_scores(&s.in, score));
    for (size_t i = 0; i < N; i++)
        explicit_gradient(&s, s.both, fm_dataset_at(s.data, i), &g[i], &loss);
    for (size_t i = 0; i < N; i++) {
        double want = product(&g[i], &g[1]) - product(&g[i], &g[4]);
        double size = sqrt(product(&g[i], &g[i]) * (product(&g[1], &g[1]) + product(&g[4], &g[4])));
        tk_assert_le(fabs(have[i] - want) / size, 1e-5, "a dot product");
    }
    for (size_t i = 0; i < N; i++)
        fm_train_result_release(&g[i]);
    fm_engine_free(s.in.e);
    stage_close(&s);
}

TEST(products_are_those_of_explicit_gradients)
{
    products_of(FM_METHOD_LORA);
    products_of(FM_METHOD_FULL);
}

/* ---- the damped matrix of one block, densely ---- */
typedef struct seen {
    double *g; /* [N, rows, cols] */
    const fmt_param *item;
} seen;

static size_t place_of(const fmt_param *p, size_t r, size_t c)
{
    size_t rows = (size_t)p->shape.dim[0];
    size_t cols = (size_t)p->shape.dim[1];
    size_t t = p->turned;

    return (size_t)p->at + (t ? (c / t * rows + r) * t + c % t : r * cols + c);
}

static fm_status see(void *ctx, size_t k, const float *g)
{
    seen *s = ctx;
    size_t rows = (size_t)s->item->shape.dim[0];
    size_t cols = (size_t)s->item->shape.dim[1];

    for (size_t i = 0; i < rows * cols; i++)
        s->g[k * rows * cols + i] = (double)g[place_of(s->item, i / cols, i % cols)];
    return FM_OK;
}

/* Eigenvectors as rows of q by Jacobi's rotations, the simplest method that there is. */
static void jacobi(double *a, double *q, size_t n)
{
    for (size_t i = 0; i < n * n; i++)
        q[i] = i % (n + 1) == 0;
    for (int round = 0; round < 60; round++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = i + 1; j < n; j++) {
                double t = 0.5 * atan2(2.0 * a[i * n + j], a[j * n + j] - a[i * n + i]);
                double c = cos(t);
                double s = sin(t);
                for (size_t k = 0; k < n; k++) {
                    double x = a[i * n + k];
                    double y = a[j * n + k];
                    a[i * n + k] = c * x - s * y;
                    a[j * n + k] = s * x + c * y;
                    x = q[i * n + k];
                    y = q[j * n + k];
                    q[i * n + k] = c * x - s * y;
                    q[j * n + k] = s * x + c * y;
                }
                for (size_t k = 0; k < n; k++) {
                    double x = a[k * n + i];
                    double y = a[k * n + j];
                    a[k * n + i] = c * x - s * y;
                    a[k * n + j] = s * x + c * y;
                }
            }
}

/* x of m x = b in b, by elimination with pivots. */
static void dense_solve(double *m, double *b, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        size_t p = k;
        for (size_t i = k + 1; i < n; i++)
            p = fabs(m[i * n + k]) > fabs(m[p * n + k]) ? i : p;
        for (size_t c = 0; c < n; c++) {
            double t = m[k * n + c];
            m[k * n + c] = m[p * n + c];
            m[p * n + c] = t;
        }
        double t = b[k];
        b[k] = b[p];
        b[p] = t;
        for (size_t i = k + 1; i < n; i++) {
            double f = m[i * n + k] / m[k * n + k];
            for (size_t c = k; c < n; c++)
                m[i * n + c] -= f * m[k * n + c];
            b[i] -= f * b[k];
        }
    }
    for (size_t k = n; k-- > 0;) {
        for (size_t c = k + 1; c < n; c++)
            b[k] -= m[k * n + c] * b[c];
        b[k] /= m[k * n + k];
    }
}

/* F = sum over the basis of value (u x v)(u x v)^T + damping, as a matrix [rc, rc], from the
 * gradients alone; x becomes F^-1 x. */
static void dense_reference(const double *g, double *x, size_t rows, size_t cols)
{
    size_t rc = rows * cols;
    double *su = fm_calloc(rows * rows, sizeof(double)),
           *u = fm_calloc(rows * rows, sizeof(double));
    double *sv = fm_calloc(cols * cols, sizeof(double)),
           *v = fm_calloc(cols * cols, sizeof(double));
    double *f = fm_calloc(rc * rc, sizeof(double)), *value = fm_calloc(rc, sizeof(double));
    double mean = 0.0;

    for (size_t k = 0; k < N; k++)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++) {
                double one = g[k * rc + r * cols + c];
                for (size_t o = 0; o < rows; o++)
                    su[r * rows + o] += one * g[k * rc + o * cols + c];
                for (size_t o = 0; o < cols; o++)
                    sv[c * cols + o] += one * g[k * rc + r * cols + o];
            }
    jacobi(su, u, rows);
    jacobi(sv, v, cols);
    for (size_t i = 0; i < rc; i++) {
        for (size_t k = 0; k < N; k++) {
            double s = 0.0;
            for (size_t e = 0; e < rc; e++)
                s += g[k * rc + e] * u[i / cols * rows + e / cols] * v[i % cols * cols + e % cols];
            value[i] += s * s / N;
        }
        mean += value[i] / (double)rc;
        for (size_t a = 0; a < rc; a++)
            for (size_t b = 0; b < rc; b++)
                f[a * rc + b] += value[i] * u[i / cols * rows + a / cols] *
                                 v[i % cols * cols + a % cols] * u[i / cols * rows + b / cols] *
                                 v[i % cols * cols + b % cols];
    }
    for (size_t i = 0; i < rc; i++)
        f[i * rc + i] += 0.1 * mean;
    dense_solve(f, x, rc);
    fm_free(su);
    fm_free(u);
    fm_free(sv);
    fm_free(v);
    fm_free(f);
    fm_free(value);
}

static void check_block(fmt_walk *w, const fmt_kron *kron, size_t item)
{
    seen s = {.item = &w->worker[0].ps.item[item]};
    size_t cols = (size_t)s.item->shape.dim[1];
    size_t rows = (size_t)s.item->shape.dim[0];
    float *target = fm_calloc((size_t)w->total, sizeof(float));
    float *solved = fm_calloc((size_t)w->total, sizeof(float));
    double *want = fm_calloc(rows * cols, sizeof(double));
    double diff = 0.0;
    double size = 0.0;

    s.g = fm_calloc(N * rows * cols, sizeof(double));
    tk_ok(fmt_walk_each(w, NULL, N, see, &s));
    tk_ok(fmt_walk_target(w, target));
    fmt_kron_solve(kron, solved, target);
    for (size_t i = 0; i < rows * cols; i++)
        want[i] = (double)target[place_of(s.item, i / cols, i % cols)];
    dense_reference(s.g, want, rows, cols);
    for (size_t i = 0; i < rows * cols; i++) {
        double have = (double)solved[place_of(s.item, i / cols, i % cols)];
        diff += (have - want[i]) * (have - want[i]);
        size += want[i] * want[i];
    }
    assert_true(size > 0.0);
    tk_assert_le(sqrt(diff / size), 1e-4, s.item->name);
    fm_free(target);
    fm_free(solved);
    fm_free(want);
    fm_free(s.g);
}

TEST(the_damped_matrix_is_inverted_as_a_dense_one)
{
    stage s;
    fmt_walk w;
    fmt_kron *kron = NULL;
    double a;
    double size;

    stage_open(&s, FM_METHOD_LORA);
    s.in.e = ik_engine(2, 64);
    tk_ok(fmt_walk_open(&w, &s.in, true));
    tk_ok(fmt_walk_stand(&w, 1));
    tk_ok(fmt_kron_new(&kron, &w));
    check_block(&w, kron, 0); /* A [4, 48] */
    check_block(&w, kron, 1); /* B [48, 4] */
    float *x = fm_calloc(2 * (size_t)w.total, sizeof(float));
    tk_ok(fmt_walk_target(&w, x));
    fmt_kron_solve(kron, x + w.total, x);
    a = 0.0;
    for (uint64_t i = 0; i < w.total; i++)
        a += (double)x[i] * (double)x[w.total + i];
    size = fmt_kron_size(kron, x);
    tk_assert_le(fabs(a / size - 1.0), 1e-4, "x^T F^-1 x");
    fm_free(x);
    fmt_kron_free(kron);
    fmt_walk_close(&w);
    fm_engine_free(s.in.e);
    stage_close(&s);
}

TEST(eigenvalues_are_those_of_numpy)
{
    /* numpy.linalg.eigvalsh */
    static const double want[] = {-0.5196330209912091, 1.4969748929800561, 2.988000031919438,
                                  4.301704669261935,   4.653890554904296,  6.079194017440025,
                                  7.5427092017988775,  9.286088206455565};
    enum { M = 8, BIG = 150 };
    double a[M * M];
    double q[M * M];
    double d[M];
    double work[2 * M];
    double *big = fm_calloc(BIG * BIG * 3 + 3 * BIG, sizeof(double));

    for (size_t i = 0; i < M * M; i++)
        a[i] = cos((double)(i / M + i % M + 1)) + (i / M == i % M ? (double)(i / M + 1) : 0.0);
    tk_ok(fmt_eigen(a, q, d, work, M));
    for (size_t i = 0; i < M; i++)
        tk_assert_le(fabs(d[i] - want[i]), 1e-12, "an eigenvalue");
    double *left = big + BIG * BIG; /* of rank 3: made of its parts again */
    for (size_t i = 0; i < BIG * BIG; i++)
        for (size_t k = 0; k < 3; k++)
            big[i] +=
                sin((double)((i / BIG + 1) * (k + 2))) * sin((double)((i % BIG + 1) * (k + 2)));
    memcpy(left, big, BIG * BIG * sizeof(double));
    double *qt = left + BIG * BIG;
    tk_ok(fmt_eigen(left, qt, qt + BIG * BIG, qt + BIG * BIG + BIG, BIG));
    for (size_t i = 0; i < BIG * BIG; i += 7) {
        double sum = 0.0;
        for (size_t k = 0; k < BIG; k++)
            sum += qt[BIG * BIG + k] * qt[k * BIG + i / BIG] * qt[k * BIG + i % BIG];
        tk_assert_le(fabs(sum - big[i]), 1e-11, "an element made of eigenvectors");
    }
    fm_free(big);
}

/* rank_bm25 0.2.2, BM25Okapi */
TEST(bm25_is_that_of_rank_bm25)
{
    static const int32_t a[] = {1, 2, 3, 4, 5}, b[] = {1, 2, 2, 6},
                         c[] = {7, 8, 9, 1, 2, 3, 10, 11}, d[] = {12, 13},
                         e[] = {1, 4, 4, 4, 14, 15, 16}, query[] = {1, 2, 4, 4, 99, 12};
    static const int32_t *const doc[] = {a, b, c, d, e};
    static const uint32_t len[] = {5, 4, 8, 2, 7};
    static const double want[] = {1.079795981468847, 0.5160442117934978, 0.31245297282433326,
                                  1.5193574204984497, 1.2001691867687039};
    double have[5];

    tk_ok(fmt_bm25(have, query, 6, doc, len, 5));
    for (size_t i = 0; i < 5; i++)
        tk_assert_le(fabs(have[i] - want[i]), 1e-12, "a score");
}

TEST(spearman_is_that_of_scipy)
{
    static const double x[] = {3, 1, 4, 1, 5, 9, 2, 6}, y[] = {2, 7, 1, 8, 2, 8, 1, 8};
    static const double same[] = {1, 1, 1};

    tk_assert_le(fabs(fm_spearman(x, y, 8) - 0.19885368120992467), 1e-14, "rho");
    assert_true(isnan(fm_spearman(same, x, 3)));
    assert_true(isnan(fm_spearman(x, y, 1)));
}

static void scores_with(stage *s, unsigned threads, double score[FM_ATTRIBUTIONS][N])
{
    double *at[FM_ATTRIBUTIONS];

    for (int k = 0; k < FM_ATTRIBUTIONS; k++)
        at[k] = score[k];
    s->in.e = ik_engine(threads, 64);
    tk_ok(fm_attribution_scores(&s->in, at));
    fm_engine_free(s->in.e);
}

TEST(any_number_of_threads_gives_the_same_bits)
{
    stage s;
    double one[FM_ATTRIBUTIONS][N];
    double two[FM_ATTRIBUTIONS][N];

    stage_open(&s, FM_METHOD_LORA);
    scores_with(&s, 1, one);
    scores_with(&s, 2, two);
    assert_memory_equal(one, two, sizeof(one));
    for (int k = 0; k < FM_ATTRIBUTIONS; k++) /* of the wrong answer's own record */
        for (size_t i = 0; i < N; i++)
            if (k != FM_ATTR_DOT && k != FM_ATTR_TRACIN && k != FM_ATTR_PATH)
                assert_true(one[k][1] >= one[k][i]);
    assert_memory_equal(one[FM_ATTR_PATH], one[FM_ATTR_TRACIN], sizeof(one[0])); /* no states */
    s.in.right = NULL;
    scores_with(&s, 2, two);
    tk_assert_le(fabs(two[FM_ATTR_COSINE][1] - 1.0), 1e-6, "cosine with itself");
    stage_close(&s);
}

/* ---- other objectives: a score is what a small step on the example does to the margin ---- */
static fm_dataset *records(const char *lines, const fm_train_config *c)
{
    fm_tokenizer *tok = kit_tokenizer();
    fm_dataset *d = NULL;

    tk_ok(fm_dataset_open(&d, fm_span_str(lines), "records", tok, NULL, c, NULL, 0));
    fm_tokenizer_close(tok);
    return d;
}

static fm_status keep_gradient(void *ctx, size_t k, const float *g)
{
    fmt_walk *w = ctx;

    (void)k;
    memcpy(w->from, g, (size_t)w->total * sizeof(float)); /* not needed any more */
    return FM_OK;
}

static void check_by_steps(stage *s, const fm_example *wrong, const fm_example *right)
{
    size_t n = fm_dataset_count(s->data);
    double have[N];
    double *score[FM_ATTRIBUTIONS] = {[FM_ATTR_DOT] = have};
    fmt_walk w;

    s->in.wrong = wrong;
    s->in.right = right;
    tk_ok(fm_attribution_scores(&s->in, score));
    tk_ok(fmt_walk_open(&w, &s->in, true));
    for (size_t i = 0; i < n; i++) {
        fmt_params *ps = &w.worker[0].ps;
        double margin[2];
        double size = 0.0;
        tk_ok(fmt_walk_stand(&w, w.points));
        tk_ok(fmt_walk_each(&w, &i, 1, keep_gradient, &w));
        for (uint64_t k = 0; k < w.total; k++)
            size += (double)w.from[k] * (double)w.from[k];
        assert_true(size > 0.0);
        double step = 0.005 / sqrt(size);
        for (int side = 0; side < 2; side++) {
            for (uint64_t k = 0; k < w.total; k++)
                w.here[k] = w.to[k] + (float)(side ? -step : step) * w.from[k];
            tk_ok(fmt_params_put_all(ps, ps->p, w.here));
            tk_ok(fmt_net_refresh(&w.worker[0].net, ps));
            tk_ok(fmt_walk_margin(&w, &margin[side]));
        }
        double want = (margin[1] - margin[0]) / (2.0 * step);
        tk_assert_le(fabs(have[i] - want), 0.02 * fabs(want) + 1e-3 * sqrt(size), "a product");
    }
    fmt_walk_close(&w);
}

static void trained_stage(stage *s, fm_train_config c, const char *lines)
{
    memset(s, 0, sizeof(*s));
    s->base = ik_source("arch/llama");
    s->mem.behind[0] = fm_source_provider(s->base);
    s->mem.behind_count = 1;
    s->data = records(lines, &c);
    s->job = (fm_train_job){
        .name = "step", .config = c, .parent = fm_source_tree(s->base), .data = s->data};
    s->in = (fm_attribution_in){.e = ik_engine(2, 64), .p = &s->p, .job = &s->job};
    fm_provider p = fm_source_provider(s->base);
    tk_ok(fm_train_run(s->in.e, &p, &s->job, 1, &s->result, NULL, NULL));
    assert_int_equal(s->result.failed, FM_OK);
    tk_ok(fm_tree_copy(&s->both, fm_source_tree(s->base)));
    put_result(&s->mem, s->both, &s->result);
    s->p = ik_provider(&s->mem);
    s->in.child = s->both;
}

TEST(classes_are_ranked_through_their_head)
{
    stage s;
    fm_train_config c = config_of(FM_METHOD_FULL);

    c.objective = FM_OBJECTIVE_CLASSIFY;
    trained_stage(&s, c,
                  "{\"text\":\"good day\",\"label\":\"pos\"}\n"
                  "{\"text\":\"bad day\",\"label\":\"neg\"}\n"
                  "{\"text\":\"a fine one\",\"label\":\"pos\"}\n"
                  "{\"text\":\"never\",\"label\":\"neg\"}\n");
    fm_example right = *fm_dataset_at(s.data, 0);
    right.klass = 1 - right.klass;
    check_by_steps(&s, fm_dataset_at(s.data, 0), &right);
    fm_engine_free(s.in.e);
    stage_close(&s);
}

TEST(preferences_are_ranked_by_their_pairs)
{
    stage s;
    fm_train_config c = config_of(FM_METHOD_FULL);
    fm_train_config text = c;

    c.objective = FM_OBJECTIVE_DPO;
    c.max_tokens = 7; /* the end token is not in this vocabulary */
    trained_stage(&s, c,
                  "{\"prompt\":\"a b \",\"chosen\":\"c d\",\"rejected\":\"x y\"}\n"
                  "{\"prompt\":\"1 2 \",\"chosen\":\"3 4\",\"rejected\":\"9 8\"}\n");
    fm_dataset *texts = six_blocks(&text, NULL, 0);
    check_by_steps(&s, fm_dataset_at(texts, 0), fm_dataset_at(texts, 2));
    fm_dataset_close(texts);
    fm_engine_free(s.in.e);
    stage_close(&s);
}

/* ---- kept states ---- */
typedef struct state_copy {
    fm_train_state s;
    fm_trained t[256];
} state_copy;

static fm_status copy_state(void *ctx, uint32_t child, const fm_train_state *s)
{
    state_copy *c = ctx;

    (void)child;
    assert_true(s->count <= FM_ARRAY_LEN(c->t));
    c->s = (fm_train_state){.step = s->step, .tensors = c->t, .count = s->count};
    for (size_t i = 0; i < s->count; i++) {
        c->t[i] = s->tensors[i];
        c->t[i].name = fm_strdup(s->tensors[i].name);
        c->t[i].data = fm_memdup(s->tensors[i].data, (size_t)s->tensors[i].bytes);
    }
    return FM_OK;
}

static void tracin_at_the_last_state_is_the_product_at_the_child(void **state)
{
    stage s;
    state_copy c = {0};
    fm_train_checkpoints checkpoints = {.ctx = &c, .save = copy_state};
    fm_train_result r;
    double tracin[N];
    double dot[N];
    double *score[FM_ATTRIBUTIONS] = {[FM_ATTR_TRACIN] = tracin, [FM_ATTR_DOT] = dot};

    (void)state;
    stage_open(&s, FM_METHOD_FULL);
    s.in.e = ik_engine(2, 64);
    fm_train_job j = s.job;
    j.checkpoints = &checkpoints;
    tk_ok(fm_train_run(s.in.e, &s.p, &j, 1, &r, NULL, NULL));
    fm_train_result_release(&r);
    assert_int_equal(c.s.step, 3);
    s.in.state = &c.s;
    s.in.states = 1;
    tk_ok(fm_attribution_scores(&s.in, score));
    for (size_t i = 0; i < N; i++)
        tk_assert_le(fabs(tracin[i] - dot[i]), 1e-12 * fabs(dot[i]), "TracIn at the end");
    c.s.tensors[0].bytes -= 4;
    tk_fails(fm_attribution_scores(&s.in, score), FM_ECORRUPT, "after step 3");
    for (size_t i = 0; i < c.s.count; i++) {
        fm_free(c.t[i].name);
        fm_free(c.t[i].data);
    }
    fm_engine_free(s.in.e);
    stage_close(&s);
}

/* ---- training again ---- */
TEST(training_again_is_a_run_without_the_records)
{
    static const uint32_t skip[] = {1, 3};
    bool without[N] = {[1] = true, [3] = true};
    bool all[N] = {true, true, true, true, true, true};
    const bool *const groups[] = {without, NULL};
    const bool *const none[] = {all};
    double margin[2];
    double child;
    double wrong;
    double right;
    stage s;
    fm_train_result r;
    fm_train_result g;
    fm_tree *tree = NULL;

    stage_open(&s, FM_METHOD_FULL);
    s.in.e = ik_engine(2, 64);
    tk_ok(fm_attribution_retrain(&s.in, groups, 2, margin));
    tk_ok(fm_attribution_margin(&s.in, &child));
    assert_true(margin[1] >= child && margin[1] <= child); /* the very same training */
    fm_train_job j = s.job;
    fm_dataset *rest = six_blocks(&j.config, skip, 2);
    j.data = rest;
    tk_ok(fm_train_run(s.in.e, &s.p, &j, 1, &r, NULL, NULL));
    tk_ok(fm_tree_copy(&tree, fm_source_tree(s.base)));
    put_result(&s.mem, tree, &r);
    explicit_gradient(&s, tree, s.in.wrong, &g, &wrong);
    fm_train_result_release(&g);
    explicit_gradient(&s, tree, s.in.right, &g, &right);
    fm_train_result_release(&g);
    tk_assert_le(fabs(margin[0] - (right - wrong)), 1e-5 * (right + wrong), "the margin without");
    tk_fails(fm_attribution_retrain(&s.in, none, 1, margin), FM_EINVAL, "nothing to train on");
    fm_train_result_release(&r);
    fm_dataset_close(rest);
    fm_tree_free(tree);
    fm_engine_free(s.in.e);
    stage_close(&s);
}

TEST(what_cannot_be_ranked_is_refused)
{
    stage s;
    double have[N];
    double *score[FM_ATTRIBUTIONS] = {[FM_ATTR_COSINE] = have};
    fm_attribution_kind kind;

    tk_fails(fm_attribution_find(&kind, "guess"), FM_EINVAL, "path, tracin, cosine");
    tk_fails(fm_attribution_find(&kind, "states"), FM_EINVAL, "there are path"); /* was one */
    tk_ok(fm_attribution_find(&kind, "bm25"));
    assert_int_equal(kind, FM_ATTR_BM25);
    stage_open(&s, FM_METHOD_FULL);
    s.in.e = ik_engine(2, 64);
    s.in.child = s.job.parent;
    tk_fails(fm_attribution_scores(&s.in, score), FM_EINVAL, "same weights");
    s.in.child = s.both;
    fm_example silent = *s.in.wrong;
    int32_t none[LEN];
    for (size_t i = 0; i < LEN; i++)
        none[i] = -100;
    silent.labels = none;
    s.in.wrong = &silent;
    tk_fails(fm_attribution_scores(&s.in, score), FM_EINVAL, "no token that counts");
    s.job.config.objective = FM_OBJECTIVE_CONTRASTIVE;
    tk_fails(fm_attribution_scores(&s.in, score), FM_EUNSUPPORTED, "contrastive");
    fm_engine_free(s.in.e);
    stage_close(&s);
}

int main(void)
{
    char *data = tk_shared("arch/llama/ref.safetensors");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_explicit_gradients),
        cmocka_unit_test(the_damped_matrix_is_inverted_as_a_dense_one),
        cmocka_unit_test(eigenvalues_are_those_of_numpy),
        cmocka_unit_test(bm25_is_that_of_rank_bm25),
        cmocka_unit_test(spearman_is_that_of_scipy),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(classes_are_ranked_through_their_head),
        cmocka_unit_test(preferences_are_ranked_by_their_pairs),
        cmocka_unit_test(tracin_at_the_last_state_is_the_product_at_the_child),
        cmocka_unit_test(training_again_is_a_run_without_the_records),
        cmocka_unit_test(what_cannot_be_ranked_is_refused),
    };

    if (!data)
        return tk_skip("reference data is not on this machine (FM_SHARED_DATA)");
    fm_free(data);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
