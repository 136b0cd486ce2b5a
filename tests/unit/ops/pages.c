/* Hostile text in every place of every page: of a test, a training, a blame. The pages stay well
 * formed, have no element and no attribute but ours, and show the text. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/ops/blame/blame_more.h"
#include "cli/ops/derive/curve.h"
#include "lineage/lineage.h"
#include "store/base/mem.h"
#include "store/base/text/utf8.h"
#include "testing/report.h"
#include "testing/suite/internal.h"
#include "tests/testkit.h"

enum { SLOTS = 96 };

/* A text of its own for a place: it would close elements, attributes, comments and sections. */
static char slot[SLOTS][160];
static unsigned slots;

static char *hostile(void)
{
    assert_true(slots < SLOTS);
    snprintf(
        slot[slots], sizeof slot[0],
        "s%03u</td></title></svg></style><script>x</script>\"' onload=x --> ]]> &lt;\x01\x7f\xff"
        "\r\n<!-- %%s {{x}}",
        slots);
    return slot[slots++];
}

/* As a key of JSON, which has to be UTF-8. */
static const char *hostile_key(void)
{
    char *text = hostile();
    *strchr(text, '\xff') = '_';
    return text;
}

static bool among(const char *name, const char *const *list)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

static size_t name_at(char out[24], const char *p)
{
    size_t n = 0;
    for (; isalnum((unsigned char)p[n]) || p[n] == '-'; n++) {
        assert_true(n < 23);
        out[n] = p[n];
    }
    out[n] = '\0';
    assert_true(n > 0);
    return n;
}

/* One character, or a reference that we write. */
static size_t text_at(const char *p, size_t left)
{
    static const char *const references[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
    for (size_t i = 0; i < FM_ARRAY_LEN(references); i++)
        if (strncmp(p, references[i], strlen(references[i])) == 0)
            return strlen(references[i]);
    if (strncmp(p, "&#", 2) == 0) {
        size_t digits = strspn(p + 2, "0123456789");
        assert_true(digits > 0 && p[2 + digits] == ';');
        return digits + 3;
    }
    assert_null(strchr("&<>\"", *p)); /* NUL too */
    assert_true((unsigned char)*p >= 0x20 || *p == '\n' || *p == '\t');
    size_t n = fm_utf8_len((const uint8_t *)p, left);
    assert_true(n > 0);
    return n;
}

/* The tag at p; open[] are the elements that are open. */
static size_t tag_at(const char *p, size_t left, char open[][24], size_t *depth)
{
    static const char *const elements[] = {
        "html", "head", "meta", "title", "style",   "body",    "h1",      "h2",       "h3",   "p",
        "ul",   "li",   "div",  "span",  "section", "details", "summary", "table",    "tr",   "th",
        "td",   "pre",  "code", "svg",   "line",    "rect",    "circle",  "polyline", "text", NULL};
    static const char *const attributes[] = {
        "lang",    "charset", "name", "content", "class",       "id",    "style", "title", "role",
        "viewBox", "x",       "y",    "x1",      "x2",          "y1",    "y2",    "width", "height",
        "cx",      "cy",      "r",    "points",  "text-anchor", "xmlns", NULL};
    const char *start = p++;
    char name[24], attribute[24];
    if (*p == '/') {
        p += 1 + name_at(name, p + 1);
        assert_true(*depth > 0);
        assert_string_equal(open[--*depth], name);
        assert_int_equal(*p, '>');
        return (size_t)(p + 1 - start);
    }
    p += name_at(name, p);
    assert_true(among(name, elements));
    while (*p == ' ') {
        p += 1 + name_at(attribute, p + 1);
        assert_true(among(attribute, attributes));
        assert_memory_equal(p, "=\"", 2);
        for (p += 2; *p != '"';) {
            assert_int_not_equal(*p, '\n'); /* a parser would fold it */
            p += text_at(p, left - (size_t)(p - start));
        }
        p++;
    }
    if (strncmp(p, "/>", 2) == 0)
        return (size_t)(p + 2 - start);
    assert_int_equal(*p, '>');
    assert_true(*depth < 32);
    memcpy(open[(*depth)++], name, sizeof name);
    return (size_t)(p + 1 - start);
}

/* Well formed, and every text of hostile() since the last such page is in it. */
static void holds(const fm_buf *page)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    char open[32][24];
    size_t depth = 0, at = 0;
    const char *text = fm_buf_cstr(page);
    if (strncmp(text, doctype, strlen(doctype)) == 0)
        at = strlen(doctype);
    while (at < page->len) {
        const bool style = depth && strcmp(open[depth - 1], "style") == 0;
        if (style && text[at] != '<') /* ours alone: it ends at the first tag */
            at++;
        else if (text[at] == '<')
            at += tag_at(text + at, page->len - at, open, &depth);
        else
            at += text_at(text + at, page->len - at);
    }
    assert_int_equal(depth, 0);
    for (unsigned i = 0; i < slots; i++) {
        char want[32];
        snprintf(want, sizeof want, "s%03u&lt;/td&gt;", i);
        if (!strstr(text, want))
            fail_msg("text %u is not in the page", i);
    }
    slots = 0;
}

#define ODD "</td><script>x</script>\\\"'" /* in YAML, where control bytes are refused */

static fm_suite *suite_of(void)
{
    static const char yaml[] =
        "suite: s\ndescription: d\ncases:\n"
        "  - {name: \"name" ODD "\", prompt: \"prompt" ODD "\",\n"
        "     capability: \"skill" ODD "\", expect: {contains: \"word" ODD "\"}}\n"
        "  - {name: b, prompt: p, continuation: x, logprob-above: -1}\n";
    fm_suite *s = NULL;
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "s.yaml"));
    return s;
}

static void shows(const fm_buf *page, const char *text)
{
    if (!strstr(fm_buf_cstr(page), text))
        fail_msg("the page does not show '%s'", text);
}

TEST(a_test_report_holds)
{
    fm_suite *suite = suite_of();
    fm_case_result result[2][2];
    fm_suite_run run[2];
    fm_report_column column[2];
    fm_measure_result measure = {.name = hostile(), .value = 1, .count = 1, .detail = hostile()};
    fm_buf out;
    for (size_t c = 0; c < 2; c++) {
        for (size_t i = 0; i < 2; i++)
            result[c][i] = (fm_case_result){.name = fm_suite_case_name(suite, i),
                                            .at = i,
                                            .verdict = c == i ? FM_FAIL : FM_PASS,
                                            .output = hostile(),
                                            .score = i ? -1.5 : (double)NAN};
        run[c] = (fm_suite_run){.suite = suite, .result = result[c], .count = 2};
        fmv_run_count(&run[c]);
        column[c] = (fm_report_column){.name = hostile(),
                                       .id = "<b>\"&\x01\xff",
                                       .note = hostile(),
                                       .run = &run[c],
                                       .run_count = 1,
                                       .parent = c ? 0 : SIZE_MAX};
    }
    measure.verdict = FM_FAIL;
    run[1].measure = &measure;
    run[1].measure_count = 1;
    result[1][1].detail = hostile();
    result[1][1].repeats = 3;
    fm_answer_token token = {hostile(), -0.5};
    fm_answer_tokens tokens = {&result[1][1], &token, 1};
    const fm_report report = {.title = hostile(),
                              .mode = hostile(),
                              .column = column,
                              .count = 2,
                              .shown = 1,
                              .confidence = 0.95,
                              .tokens = &tokens,
                              .token_count = 1};
    fm_buf_init(&out, 0);
    tk_ok(fm_report_html(&out, &report));
    holds(&out);
    shows(&out, "s/name&lt;/td&gt;&lt;script&gt;");
    shows(&out, "<td>skill&lt;/td&gt;&lt;script&gt;");
    shows(&out, "<td class=\"n\">&lt;b&gt;&quot;&amp;\xEF\xBF\xBD\xEF\xBF\xBD</td>");
    fm_buf_release(&out);
    fm_suite_free(suite);
}

static void put(fm_status *rc, fm_json *o, const char *key)
{
    fm_json_put(rc, o, key, fm_json_new_str(hostile()));
}

TEST(a_training_holds)
{
    static const char *const about[] = {"operation", "engine", "device", "mode", "kernel_class"};
    fm_status rc = FM_OK;
    fm_json *recipe = fm_json_new_object(), *config = fm_json_new_object();
    fm_json *data = fm_json_new_array(), *file = fm_json_new_object();
    fm_json *sweep = fm_json_new_object(), *trials = fm_json_new_array();
    fm_json *trial = fm_json_new_object(), *report = fm_json_new_object();
    fm_json *reports = fm_json_new_array(), *log = NULL, *deep = fm_json_new_object();
    fm_buf out;
    for (size_t i = 0; i < FM_ARRAY_LEN(about); i++)
        put(&rc, recipe, about[i]);
    put(&rc, config, "seed");
    fm_json_put(&rc, config, hostile_key(), fm_json_new_int(1));
    put(&rc, file, "name");
    put(&rc, deep, hostile_key());
    fm_json_put(&rc, trial, "set", deep);
    put(&rc, trial, "outcome");
    put(&rc, report, "of");
    fm_json_push_to(&rc, data, file);
    fm_json_push_to(&rc, trials, trial);
    fm_json_push_to(&rc, reports, report);
    fm_json_put(&rc, recipe, "config", config);
    fm_json_put(&rc, recipe, "data", data);
    fm_json_put(&rc, sweep, "trials", trials);
    tk_ok(rc);
    tk_ok(fm_json_parse(&log, fm_span_str("[{\"step\":0,\"loss\":2.5,\"lr\":0.1}]"), "log"));
    const char *gate = hostile();
    const fmo_curve_page page = {.title = hostile(),
                                 .log = log,
                                 .recipe = recipe,
                                 .sweep = sweep,
                                 .report = reports,
                                 .gates = &gate,
                                 .gate_count = 1};
    fm_buf_init(&out, 0);
    tk_ok(fmo_curve_html(&out, &page));
    holds(&out);
    fm_buf_clear(&out);
    tk_ok(fmo_curve_svg(&out, log, hostile()));
    holds(&out);
    fm_buf_release(&out);
    fm_json_free(recipe);
    fm_json_free(sweep);
    fm_json_free(reports);
    fm_json_free(log);
}

/* A history of two versions and every part that can follow it. */
typedef struct told {
    fm_ops ops;
    fmo_blame b;
    fmo_blame_more m;
    fmo_blamed_version version[2];
    size_t parent;
    fm_verdict at[2];
    uint32_t asks[2], begin[2], layer, index;
    double fails[2], share[2], lp[2], one;
    fmo_blame_unit unit;
    bool take;
    fmo_blame_rank rank;
    fmo_blame_example example;
    char *token, *names[2], *preview, committed[8];
    fmo_blame_point point[2];
    fmo_blame_ablation ablation;
    fmo_blame_candidate item[2];
} told;

static void tell_history(told *t)
{
    fmo_blame *b = &t->b;
    for (size_t i = 0; i < 2; i++) {
        snprintf(t->version[i].names, sizeof t->version[i].names, "%s", hostile());
        memcpy(t->version[i].commit.kind, "<b>'\"&\x01\xff", 8);
        t->version[i].output = hostile();
        t->asks[i] = 1;
        t->at[i] = i ? FM_PASS : FM_FAIL;
    }
    t->version[0].node = (fm_blame_node){&t->parent, 1, 1};
    t->parent = 1;
    b->c = &t->ops;
    b->version = t->version;
    b->count = 2;
    b->history = (fm_blame_history){.verdict = FM_BLAME_INTRODUCED,
                                    .source = SIZE_MAX,
                                    .at = t->at,
                                    .asks = t->asks,
                                    .fails = t->fails,
                                    .share = t->share};
    snprintf(b->history.note, sizeof b->history.note, "%s", hostile());
}

static void tell_tensors(told *t)
{
    fmo_blame *b = &t->b;
    snprintf(t->unit.name, sizeof t->unit.name, "model.layers.1.%s", hostile());
    t->take = true;
    b->unit = &t->unit;
    b->unit_count = 1;
    b->minimal = b->repair = b->rank_set = (fm_minimal_set){.take = &t->take, .size = 1};
    b->rank = &t->rank;
    b->rank_count = 1;
    b->shapley = (fm_shapley){1, &t->one, &t->one, &t->one, 0, 1, true, 1, 1};
    b->shapley_why_not = hostile();
    t->example.preview = hostile();
    b->example = &t->example;
    b->example_count = b->outstanding = 1;
    b->data_name = hostile();
}

static void tell_more(told *t)
{
    fmo_blame_more *m = &t->m;
    m->b = &t->b;
    m->rev = hostile();
    m->case_spec = hostile();
    m->answers = (fmo_blame_answers){hostile(), hostile(), NULL, t->lp, t->lp};
    m->worth = (fmo_blame_step_shapley){.value = t->b.shapley};
    t->token = hostile();
    t->begin[1] = 1;
    fm_trace grid = {.common = 1, .columns = 1, .begin = t->begin};
    for (size_t s = 0; s < FM_SITES; s++) {
        grid.rows[s] = 1;
        grid.layer[s] = &t->layer;
        grid.effect[s] = &t->one;
    }
    m->grids = (fmo_blame_grids){.done = true, .token = &t->token, .grid = {grid, grid}};
    t->point[1] = (fmo_blame_point){.step = 4, .verdict = FM_FAIL, .margin = 2};
    t->ablation = (fmo_blame_ablation){.what = hostile(), .why = hostile(), .margin = (double)NAN};
    t->preview = hostile();
    m->steps = (fmo_blame_steps){.done = true,
                                 .steps = 4,
                                 .point = t->point,
                                 .points = 2,
                                 .preview = &t->preview,
                                 .index = &t->index,
                                 .records = 1,
                                 .ablation = &t->ablation,
                                 .ablations = 1};
    t->names[0] = hostile();
    t->names[1] = hostile();
    t->item[0] = (fmo_blame_candidate){.what = hostile(),
                                       .run = true,
                                       .breaks = t->names,
                                       .break_count = 1,
                                       .fixes = t->names + 1,
                                       .fix_count = 1};
    t->item[1] = (fmo_blame_candidate){.what = hostile(), .why = hostile()};
    memcpy(t->committed, "<b>\"&\x01\xff", 8);
    m->repairs =
        (fmo_blame_repairs){.done = true, .item = t->item, .count = 2, .committed = t->committed};
}

TEST(a_blame_holds)
{
    char *dir = tk_scratch();
    told *t = fm_calloc(1, sizeof *t);
    fm_buf out;
    tk_ok(fm_repo_init(dir, false));
    tk_ok(fm_repo_open(&t->ops.repo, dir));
    t->b.suite = suite_of();
    t->one = 1;
    tell_history(t);
    tell_tensors(t);
    tell_more(t);
    fm_buf_init(&out, 0);
    tk_ok(fmo_blame_html(&out, &t->m, true, true, 8));
    holds(&out);
    shows(&out, "<h1>s/name&lt;/td&gt;&lt;script&gt;");
    shows(&out, "<li>prompt&lt;/td&gt;&lt;script&gt;");
    shows(&out, "<li>word&lt;/td&gt;&lt;script&gt;");
    shows(&out, ", &lt;b&gt;'&quot;&amp;\xEF\xBF\xBD\xEF\xBF\xBD)");
    shows(&out, "committed as &lt;b&gt;&quot;&amp;\xEF\xBF\xBD\xEF\xBF\xBD.");
    fm_buf_clear(&out);
    t->m.grids = (fmo_blame_grids){.why_not = hostile()};
    t->m.steps = (fmo_blame_steps){.why_not = hostile()};
    tk_ok(fmo_blame_html(&out, &t->m, false, false, 8));
    holds(&out);
    fm_buf_release(&out);
    fm_suite_free((fm_suite *)(uintptr_t)t->b.suite);
    fm_repo_close(t->ops.repo);
    fm_free(t);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_test_report_holds),
        cmocka_unit_test(a_training_holds),
        cmocka_unit_test(a_blame_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
