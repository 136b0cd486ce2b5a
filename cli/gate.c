/* gate.c - the suites that a tree carries, run before a branch moves. */
#include <string.h>

#include "cli/version_tree.h"
#include "store/base/mem.h"

void suites_free(suite_set *s)
{
    for (size_t i = 0; i < s->count; i++)
        fm_suite_free(s->suite[i]);
    fm_free(s->suite);
    s->suite = NULL;
    s->count = 0;
}

fm_status suites_of(cli *c, const fm_tree *tree, suite_set *out)
{
    size_t begin, end;
    fm_tree_range(tree, "suites/", &begin, &end);
    out->count = 0;
    out->suite = fm_calloc(end - begin, sizeof *out->suite);
    if (!out->suite)
        return FM_ENOMEM;
    fm_status rc = FM_OK;
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        fm_buf text;
        fm_buf_init(&text, 0);
        rc = cli_entry_bytes(c, e, &text);
        if (rc == FM_OK)
            rc = fm_suite_parse(&out->suite[out->count], fm_buf_span(&text), e->path);
        if (rc == FM_OK)
            out->count++;
        fm_buf_release(&text);
    }
    if (rc < 0)
        suites_free(out);
    return rc;
}

static fm_status cache_get(void *ctx, fm_buf *out, const char key[65])
{
    return fm_result_get(((cli *)ctx)->repo, out, key);
}

static fm_status cache_put(void *ctx, const char key[65], fm_span value)
{
    return fm_result_put(((cli *)ctx)->repo, key, value);
}

fm_result_cache suite_cache(cli *c)
{
    return (fm_result_cache){.ctx = c, .get = cache_get, .put = cache_put, .open = pinned_model};
}

static void print_run(const fm_suite_run *run, const char *label)
{
    bool bad = run->passed != run->count;
    fprintf(stderr, "  %s  suite %s%s: %zu of %zu passed%s\n", label, fm_suite_name(run->suite),
            fm_suite_is_gate(run->suite) ? " (gate)" : "", run->passed, run->count,
            run->cached == run->count ? " (cached)" : "");
    for (size_t i = 0; bad && i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        if (r->verdict != FM_PASS)
            fprintf(stderr, "    %s %s: %s\n", r->verdict == FM_FAIL ? "FAIL" : "ERROR", r->name,
                    out_text(r->detail, 160));
    }
}

char *tests_note(cli *c, const fm_oid *oid)
{
    fm_buf note;
    char *line = NULL;
    fm_buf_init(&note, 0);
    if (fm_note_read(c->repo, &note, oid) == FM_OK) {
        while (note.len && note.data[note.len - 1] == '\n')
            note.data[--note.len] = 0;
        const char *text = fm_buf_cstr(&note), *last = strrchr(text, '\n');
        line = fm_strdup(last ? last + 1 : text);
    }
    fm_error_clear(); /* a version without a note is the common case */
    fm_buf_release(&note);
    return line;
}

fm_status note_tests(cli *c, const fm_oid *oid, const test_tally *tally)
{
    char line[200];
    if (!tally->count)
        return FM_OK;
    snprintf(line, sizeof line, "tests: %zu of %zu cases passed (%s)", tally->passed, tally->count,
             fm_engine_mode(c->engine));
    char *last = tests_note(c, oid);
    bool known = last && strcmp(last, line) == 0;
    fm_free(last);
    return known ? FM_OK : fm_note_add(c->repo, oid, line);
}

fm_status run_gates(cli *c, const fm_tree *tree, const char *label, test_tally *out)
{
    suite_set set = {0};
    fm_model *model = NULL;
    fm_result_cache cache = suite_cache(c);
    *out = (test_tally){0};
    fm_status rc = suites_of(c, tree, &set);
    if (rc == FM_OK && set.count)
        rc = cli_load_model(c, tree, label, &model);
    for (size_t i = 0; rc == FM_OK && i < set.count; i++) {
        fm_suite_run run;
        rc = fm_suite_run_on(&run, set.suite[i], model, NULL, &cache);
        if (rc < 0)
            break;
        print_run(&run, label);
        if (fm_suite_is_gate(set.suite[i]) && run.passed != run.count)
            out->gates_failed++;
        out->passed += run.passed;
        out->count += run.count;
        fm_suite_run_release(&run);
    }
    if (rc == FM_OK && set.count)
        rc = fm_result_flush(c->repo);
    fm_model_close(model);
    suites_free(&set);
    return rc;
}
