/* suite_text.c - prints a suite of a version, and the versions that added, changed, waived its
 * cases. */
#include "cli/ops/version/suite_edit.h"
#include "cli/report/report.h"
#include "testing/policy.h"

static void print_stage(const char *word, const fm_version *v)
{
    printf("    %-10s %s  %s\n", word, fm_ops_short_oid(&v->oid), out_text(v->subject, 80));
}

static void print_origin(const fmo_suite_origin *o)
{
    printf("  %s%s%s\n", out_c(OUT_BOLD), out_text(o->name, 300), out_c(OUT_PLAIN));
    print_stage("added", o->added);
    if (o->changed)
        print_stage("changed", o->changed);
    if (!o->waiver)
        return;
    print_stage("waived", o->waived);
    printf("               %s%s", o->waiver->over ? "(over) " : "",
           out_text(o->waiver->reason, 400));
    if (o->waiver->until)
        printf("; until %s", o->waiver->until);
    if (o->waiver->owner)
        printf("; %s", out_text(o->waiver->owner, 80));
    putchar('\n');
}

static fm_json *stage_json(const fm_version *v)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_oid_hex(&v->oid, hex);
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_put(&rc, o, "subject", fm_json_new_str(v->subject));
    return o;
}

static fm_json *origin_json(const fmo_suite_origin *g)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "name", fm_json_new_str(g->name));
    fm_json_put(&rc, o, "added", stage_json(g->added));
    if (g->changed)
        fm_json_put(&rc, o, "changed", stage_json(g->changed));
    if (g->waiver) {
        fm_json *w = stage_json(g->waived);
        fm_json_put(&rc, w, "reason", fm_json_new_str(g->waiver->reason));
        fm_json_put(&rc, w, "until", fm_json_new_str(g->waiver->until));
        fm_json_put(&rc, w, "owner", fm_json_new_str(g->waiver->owner));
        fm_json_put(&rc, w, "over", fm_json_new_bool(g->waiver->over));
        fm_json_put(&rc, o, "waived", w);
    }
    return o;
}

static fm_status show_cases(fmo_suite_origins *h, fm_json *cases)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < fm_suite_count(fmo_suite_origins_suite(h)); i++) {
        fmo_suite_origin o;
        rc = fmo_suite_origin_of(h, i, &o);
        if (rc == FM_OK && cases)
            fm_json_push_to(&rc, cases, origin_json(&o));
        else if (rc == FM_OK)
            print_origin(&o);
    }
    return rc;
}

static fm_status show(fmo_suite_origins *h, const char *name, bool json)
{
    const fm_suite *suite = fmo_suite_origins_suite(h);
    bool gate = fm_suite_is_gate(suite);
    fm_buf words;
    fm_buf_init(&words, 0);
    fm_status rc = fm_policy_words(&words, fm_suite_policy(suite));
    fm_json *o = json ? fm_json_new_object() : NULL, *cases = json ? fm_json_new_array() : NULL;
    if (json) {
        fm_json_put(&rc, o, "suite", fm_json_new_str(name));
        fm_json_put(&rc, o, "gate", fm_json_new_bool(gate));
        fm_json_put(&rc, o, "gate_asks", fm_json_new_str(fm_buf_cstr(&words)));
    } else if (rc == FM_OK) {
        printf("%s%s%s  %zu cases%s%s\n", out_c(OUT_BOLD), name, out_c(OUT_PLAIN),
               fm_suite_count(suite), gate ? ", a gate: " : "", gate ? fm_buf_cstr(&words) : "");
    }
    fm_buf_release(&words);
    FM_THEN(rc, show_cases(h, cases));
    if (json)
        fm_json_put(&rc, o, "cases", cases);
    if (json && rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

fm_status print_suite(cli *c, const char *rev, const char *suite, bool json)
{
    fmo_suite_origins *h = NULL;
    fm_status rc = fmo_suite_origins_open(&h, c, rev, suite);
    FM_THEN(rc, show(h, suite, json));
    fmo_suite_origins_close(h);
    return rc;
}
