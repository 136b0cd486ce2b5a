/* diff.c - fmstore diff A B: the tensors and files that changed, and by how much; the changes of
 * the recipe; the last test results of each. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"
#include "store/base/mem.h"

typedef struct diff_state {
    cli *c;
    fm_provider p;
    bool stat, json;
    out_table *table;
    fm_json *changes;
    uint64_t tensors, files;
    const char *rev[2];
    fm_oid oid[2];
} diff_state;

static const char *const change_word[] = {"added", "deleted", "modified"};

/* Whether the two entries can be compared value by value. */
static bool comparable(const fm_change *ch)
{
    return ch->kind == FM_CHANGE_MODIFY && ch->a->kind == FM_ENTRY_TENSOR &&
           ch->b->kind == FM_ENTRY_TENSOR && fm_shape_eq(&ch->a->shape, &ch->b->shape) &&
           ch->a->dtype == ch->b->dtype && fm_dtype_get(ch->a->dtype)->is_float;
}

static void describe_entry(char *out, size_t bytes, const fm_entry *e)
{
    char shape[128];
    if (!e || e->kind != FM_ENTRY_TENSOR) {
        snprintf(out, bytes, "%s", e ? out_bytes(e->bytes) : "");
        return;
    }
    fm_shape_text(&e->shape, shape, sizeof shape);
    snprintf(out, bytes, "%s %s", fm_dtype_get(e->dtype)->name, shape);
}

static fm_status add_json(diff_state *s, const fm_change *ch, const fm_tensor_change *t)
{
    fm_status rc = FM_OK;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "path", fm_json_new_str(e->path));
    fm_json_put(&rc, o, "change", fm_json_new_str(change_word[ch->kind]));
    if (e->name)
        fm_json_put(&rc, o, "name", fm_json_new_str(e->name));
    if (t) {
        fm_json_put(&rc, o, "elems", fm_json_new_int((int64_t)t->elems));
        fm_json_put(&rc, o, "changed", fm_json_new_int((int64_t)t->changed));
        fm_json_put(&rc, o, "relative", fm_json_new_real(t->norm_delta / t->norm_a));
        fm_json_put(&rc, o, "max_abs", fm_json_new_real(t->max_abs_delta));
        fm_json_put(&rc, o, "cosine", fm_json_new_real(t->cosine));
    }
    fm_json_push_to(&rc, s->changes, o);
    return rc;
}

static void print_measured(out_table *table, const fm_tensor_change *t)
{
    double share = 100.0 * (double)t->changed / (double)FM_MAX(t->elems, (uint64_t)1);
    if (t->norm_a > 0)
        out_cell(table, "%.3g %% of the norm, %.1f %% of the values, largest %.3g",
                 100 * t->norm_delta / t->norm_a, share, t->max_abs_delta);
    else
        out_cell(table, "was all zero, %.1f %% of the values, largest %.3g", share,
                 t->max_abs_delta);
}

static fm_status each_change(void *ctx, const fm_change *ch)
{
    diff_state *s = ctx;
    fm_tensor_change t;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    bool measured = !s->stat && comparable(ch);
    FM_TRY(measured ? fm_tensor_compare(&s->p, ch->a, ch->b, &t) : FM_OK);
    if (e->kind == FM_ENTRY_TENSOR)
        s->tensors++;
    else
        s->files++;
    if (s->json)
        return add_json(s, ch, measured ? &t : NULL);
    char was[160], is[160];
    describe_entry(was, sizeof was, ch->a);
    describe_entry(is, sizeof is, ch->b);
    out_cell(s->table, "%c", "ADM"[ch->kind]);
    out_cell(s->table, "%s", out_text(e->path, 500));
    if (measured)
        print_measured(s->table, &t);
    else if (ch->kind == FM_CHANGE_MODIFY && strcmp(was, is) != 0)
        out_cell(s->table, "%s -> %s", was, is);
    else
        out_cell(s->table, "%s", is[0] ? is : was);
    out_end_row(s->table);
    return FM_OK;
}

static void print_recipe_difference(const fm_json *a, const fm_json *b)
{
    const fm_json *ca = fm_json_get(a, "config"), *cb = fm_json_get(b, "config");
    for (void *it = fm_json_iter(cb); it; it = fm_json_next(cb, it)) {
        const char *key = fm_json_iter_key(it);
        if (fm_json_equal(fm_json_get(ca, key), fm_json_iter_value(it)))
            continue;
        fm_buf was, is;
        fm_buf_init(&was, 0);
        fm_buf_init(&is, 0);
        if (fm_json_get(ca, key))
            fm_ignore(fm_json_write(&was, fm_json_get(ca, key), FM_JSON_COMPACT), "for people");
        fm_ignore(fm_json_write(&is, fm_json_iter_value(it), FM_JSON_COMPACT), "for people");
        printf("recipe  %s: %s -> %s\n", out_text(key, 100),
               was.len ? out_text(fm_buf_cstr(&was), 500) : "-", out_text(fm_buf_cstr(&is), 500));
        fm_buf_release(&was);
        fm_buf_release(&is);
    }
}

static fm_status finish(diff_state *s, const fm_tree *a, const fm_tree *b)
{
    char *tests[2] = {fmo_tests_note(s->c, &s->oid[0]), fmo_tests_note(s->c, &s->oid[1])};
    if (s->json) {
        fm_status rc = FM_OK;
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "tensors", fm_json_new_int((int64_t)s->tensors));
        fm_json_put(&rc, o, "files", fm_json_new_int((int64_t)s->files));
        fm_json_put(&rc, o, "changes", s->changes);
        s->changes = NULL;
        fm_json_put(&rc, o, "tests_a", fm_json_new_str(tests[0]));
        fm_json_put(&rc, o, "tests_b", fm_json_new_str(tests[1]));
        fm_free(tests[0]);
        fm_free(tests[1]);
        if (rc == FM_OK)
            return out_json(o);
        fm_json_free(o);
        return rc;
    }
    fm_json *ra = NULL, *rb = NULL;
    out_table_print(s->table, stdout, "");
    s->table = NULL;
    fm_status rc = fmo_tree_recipe(s->c, a, &ra);
    FM_THEN(rc, fmo_tree_recipe(s->c, b, &rb));
    if (rc == FM_OK && ra && rb)
        print_recipe_difference(ra, rb);
    for (size_t i = 0; i < 2; i++) {
        if (rc == FM_OK && tests[i])
            printf("%s: %s\n", s->rev[i], tests[i]);
        fm_free(tests[i]);
    }
    if (rc == FM_OK)
        printf("%" PRIu64 " tensor%s and %" PRIu64 " file%s differ\n", s->tensors,
               s->tensors == 1 ? "" : "s", s->files, s->files == 1 ? "" : "s");
    fm_json_free(ra);
    fm_json_free(rb);
    return rc;
}

int cmd_diff(cli *c, int argc, char **argv)
{
    diff_state s = {.c = c};
    size_t n;
    fm_tree *tree[2] = {NULL, NULL};
    const opt_spec table[] = {
        {0, "stat", OPT_FLAG, NULL, "names only; do not read the values", &s.stat},
        {0, "json", OPT_FLAG, NULL, "as JSON", &s.json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, s.rev, 2, 2, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_status rc = fm_ops_resolve(c, s.rev[0], &s.oid[0], &tree[0]);
    FM_THEN(rc, fm_ops_resolve(c, s.rev[1], &s.oid[1], &tree[1]));
    if (rc == FM_OK) {
        s.p = fm_store_provider(fm_repo_store(c->repo));
        s.table = out_table_new();
        s.changes = fm_json_new_array();
        rc = s.table && s.changes ? fm_diff_trees(tree[0], tree[1], each_change, &s) : FM_ENOMEM;
    }
    FM_THEN(rc, finish(&s, tree[0], tree[1]));
    if (rc == FM_OK && s.tensors + s.files) {
        fm_error_clear();
        rc = FM_EREFUSED; /* exit code 1: they differ */
    }
    fm_json_free(s.changes);
    out_table_free(s.table);
    fm_tree_free(tree[0]);
    fm_tree_free(tree[1]);
    return cli_exit(rc);
}
