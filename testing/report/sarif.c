/* sarif.c - SARIF 2.1.0 (OASIS): a rule per case that did not pass, a result per failure, so that
 * programs that show findings of linters can show those of models. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"
#include "testing/report.h"

static fm_json *text_of(fm_status *rc, const char *text)
{
    fm_json *o = fm_json_new_object();
    fm_json_put(rc, o, "text", fm_json_new_str(text && text[0] ? text : "(nothing)"));
    return o;
}

static fm_json *list_of(fm_status *rc, fm_json *one)
{
    fm_json *a = fm_json_new_array();
    fm_json_push_to(rc, a, one);
    return a;
}

/* "suite/case", or for a measure "suite/measure: name": stable over runs and versions. */
static fm_json *id_of(const fm_suite *s, const char *of, const char *name)
{
    char *id = fm_asprintf("%s/%s%s", fm_suite_name(s), of, name);
    fm_json *v = id ? fm_json_new_str(id) : NULL;
    fm_free(id);
    return v;
}

static fm_json *rule_of(fm_status *rc, const fm_suite *s, const fm_case_result *r)
{
    fm_json *o = fm_json_new_object(), *config = fm_json_new_object(),
            *about = fm_json_new_object();
    fm_json_put(rc, o, "id", id_of(s, "", r->name));
    fm_json_put(rc, o, "shortDescription", text_of(rc, r->name));
    if (fm_suite_description(s)[0])
        fm_json_put(rc, o, "fullDescription", text_of(rc, fm_suite_description(s)));
    fm_json_put(rc, config, "level", fm_json_new_str(fm_suite_is_gate(s) ? "error" : "warning"));
    fm_json_put(rc, o, "defaultConfiguration", config);
    fm_json_put(rc, about, "suite", fm_json_new_str(fm_suite_name(s)));
    fm_json_put(rc, about, "kind", fm_json_new_str(fmv_case_kind_name(s, r->at)));
    fm_json_put(rc, about, "capability", fm_json_new_str(fmv_case_capability(s, r->at)));
    fm_json_put(rc, o, "properties", about);
    return o;
}

/* Consumes name. */
static fm_json *location_of(fm_status *rc, const fm_suite *s, fm_json *name)
{
    char uri[FMV_CASE_NAME_MAX];
    fm_json *o = fm_json_new_object(), *physical = fm_json_new_object(),
            *artifact = fm_json_new_object(), *logical = fm_json_new_object();
    snprintf(uri, sizeof uri, "suites/%s.yaml", fm_suite_name(s)); /* a-z A-Z 0-9 - _ alone */
    fm_json_put(rc, artifact, "uri", fm_json_new_str(uri));
    fm_json_put(rc, physical, "artifactLocation", artifact);
    fm_json_put(rc, o, "physicalLocation", physical);
    fm_json_put(rc, logical, "fullyQualifiedName", name);
    fm_json_put(rc, logical, "kind", fm_json_new_str("member"));
    fm_json_put(rc, o, "logicalLocations", list_of(rc, logical));
    return o;
}

static void suppress(fm_status *rc, fm_json *o, const fm_suite *s, const fm_case_result *r)
{
    const fm_waiver *w = r->waived ? fm_suite_waiver(s, r->at) : NULL;
    if (!w && !r->flaky)
        return;
    fm_json *one = fm_json_new_object();
    fm_json_put(rc, one, "kind", fm_json_new_str("external"));
    fm_json_put(rc, one, "justification",
                fm_json_new_str(w ? w->reason : "flaky: its repeats under other seeds disagree"));
    fm_json_put(rc, o, "suppressions", list_of(rc, one));
}

static fm_json *result_of(fm_status *rc, const fm_suite *s, const fm_case_result *r, int64_t rule)
{
    fm_json *o = fm_json_new_object(), *about = fm_json_new_object(), *print = fm_json_new_object();
    fm_json_put(rc, o, "ruleId", id_of(s, "", r->name));
    fm_json_put(rc, o, "ruleIndex", fm_json_new_int(rule));
    fm_json_put(rc, o, "kind", fm_json_new_str("fail"));
    fm_json_put(rc, o, "level", fm_json_new_str(fm_suite_is_gate(s) ? "error" : "warning"));
    fm_json_put(rc, o, "message",
                text_of(rc, r->detail ? r->detail : "its repeats under other seeds disagree"));
    fm_json_put(rc, o, "locations", list_of(rc, location_of(rc, s, id_of(s, "", r->name))));
    fm_json_put(rc, print, "case/v1", id_of(s, "", r->name));
    fm_json_put(rc, o, "partialFingerprints", print);
    suppress(rc, o, s, r);
    fm_json_put(rc, about, "verdict",
                fm_json_new_str(r->verdict == FM_ERROR_CASE ? "error" : "fail"));
    fm_json_put(rc, about, "output", fm_json_new_str(r->output));
    if (isfinite(r->score))
        fm_json_put(rc, about, "score", fm_json_new_real(r->score));
    if (r->repeats) {
        fm_json_put(rc, about, "repeats", fm_json_new_int(r->repeats));
        fm_json_put(rc, about, "repeats_passed", fm_json_new_int(r->repeats_passed));
    }
    fm_json_put(rc, o, "properties", about);
    return o;
}

/* A measure outside its bounds: a rule and a result of its own. */
static void push_measure(fm_status *rc, fm_json *rules, fm_json *results, const fm_suite *s,
                         const fm_measure_result *m, int64_t rule)
{
    const char *level = fm_suite_is_gate(s) ? "error" : "warning";
    fm_json *about = fm_json_new_object(), *config = fm_json_new_object(),
            *o = fm_json_new_object(), *print = fm_json_new_object();
    fm_json_put(rc, about, "id", id_of(s, "measure: ", m->name));
    fm_json_put(rc, about, "shortDescription", text_of(rc, m->name));
    fm_json_put(rc, config, "level", fm_json_new_str(level));
    fm_json_put(rc, about, "defaultConfiguration", config);
    fm_json_push_to(rc, rules, about);
    fm_json_put(rc, o, "ruleId", id_of(s, "measure: ", m->name));
    fm_json_put(rc, o, "ruleIndex", fm_json_new_int(rule));
    fm_json_put(rc, o, "kind", fm_json_new_str("fail"));
    fm_json_put(rc, o, "level", fm_json_new_str(level));
    fm_json_put(rc, o, "message", text_of(rc, m->detail));
    fm_json_put(rc, o, "locations",
                list_of(rc, location_of(rc, s, id_of(s, "measure: ", m->name))));
    fm_json_put(rc, print, "case/v1", id_of(s, "measure: ", m->name));
    fm_json_put(rc, o, "partialFingerprints", print);
    fm_json_push_to(rc, results, o);
}

static fm_json *tool_of(fm_status *rc, fm_json *rules)
{
    fm_json *tool = fm_json_new_object(), *driver = fm_json_new_object();
    fm_json_put(rc, driver, "name", fm_json_new_str("fmstore"));
    fm_json_put(rc, driver, "rules", rules);
    fm_json_put(rc, tool, "driver", driver);
    return tool;
}

fm_status fm_report_sarif(fm_buf *out, const fm_report *r)
{
    const fm_report_column *c = &r->column[r->shown];
    fm_status rc = FM_OK;
    fm_json *log = fm_json_new_object(), *run = fm_json_new_object(), *rules = fm_json_new_array(),
            *results = fm_json_new_array();
    fm_json *details = fm_json_new_object();
    int64_t n = 0;
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; rc == FM_OK && i < c->run[k].count; i++) {
            const fm_case_result *one = &c->run[k].result[i];
            if (one->verdict == FM_PASS && !one->flaky)
                continue;
            fm_json_push_to(&rc, rules, rule_of(&rc, c->run[k].suite, one));
            fm_json_push_to(&rc, results, result_of(&rc, c->run[k].suite, one, n++));
        }
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; rc == FM_OK && i < c->run[k].measure_count; i++)
            if (c->run[k].measure[i].verdict != FM_PASS)
                push_measure(&rc, rules, results, c->run[k].suite, &c->run[k].measure[i], n++);
    fm_json_put(&rc, details, "id", fm_json_new_str(c->name));
    if (c->id[0])
        fm_json_put(&rc, details, "description", text_of(&rc, c->id));
    fm_json_put(&rc, run, "tool", tool_of(&rc, rules));
    fm_json_put(&rc, run, "automationDetails", details);
    fm_json_put(&rc, run, "columnKind", fm_json_new_str("unicodeCodePoints"));
    fm_json_put(&rc, run, "results", results);
    fm_json_put(&rc, log, "version", fm_json_new_str("2.1.0"));
    fm_json_put(&rc, log, "runs", list_of(&rc, run));
    FM_THEN(rc, fm_json_write(out, log, FM_JSON_PRETTY));
    fm_buf_char(out, '\n');
    fm_json_free(log);
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}
