/* show.c - fmstore show: one version: its kind, parents, recipe and size. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"
#include "infer/arch.h"
#include "store/base/mem.h"

typedef struct summary {
    uint64_t tensors, tensor_bytes, elems;
    uint64_t by_dtype[FM_DTYPE_COUNT];
    uint64_t changed, unchanged; /* tensors, compared with the first parent */
    bool has_parent;
} summary;

static fm_status count_change(void *ctx, const fm_change *ch)
{
    summary *s = ctx;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    if (e->kind == FM_ENTRY_TENSOR)
        s->changed++;
    return FM_OK;
}

static fm_status summarize(cli *c, const fm_version *v, const fm_tree *tree, summary *s)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        uint64_t n = 0;
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        fm_ignore(fm_shape_elems(&n, &e->shape), "checked when the tree was read");
        s->tensors++;
        s->elems += n;
        s->tensor_bytes += e->bytes;
        s->by_dtype[e->dtype]++;
    }
    if (v->parent_count) {
        fm_tree *parent = NULL;
        s->has_parent = true;
        rc = fm_version_tree(c->repo, &parent, &v->parent[0]);
        FM_THEN(rc, fm_diff_trees(parent, tree, count_change, s));
        fm_tree_free(parent);
    }
    s->unchanged = s->tensors > s->changed ? s->tensors - s->changed : 0;
    return rc;
}

static void print_arch(cli *c, const fm_tree *tree)
{
    const fm_provider p = fm_store_provider(fm_repo_store(c->repo));
    fm_arch a;
    if (fm_arch_of_tree(&a, tree, &p, "model.json") == FM_OK)
        printf("Model:   %s, %u layers, hidden %u, %u/%u heads, %u tokens\n", a.family, a.layers,
               a.hidden, a.heads, a.kv_heads, a.vocab);
    fm_error_clear(); /* a version that this build cannot run is shown all the same */
}

static void print_summary(const summary *s)
{
    printf("Tensors: %llu, %.2f M values, %s (", (unsigned long long)s->tensors,
           (double)s->elems / 1e6, out_bytes(s->tensor_bytes));
    const char *sep = "";
    for (int d = 1; d < FM_DTYPE_COUNT; d++)
        if (s->by_dtype[d]) {
            printf("%s%llu %s", sep, (unsigned long long)s->by_dtype[d],
                   fm_dtype_get((fm_dtype)d)->name);
            sep = ", ";
        }
    printf(")\n");
    if (s->has_parent)
        printf("Changed: %llu of them differ from the first parent\n",
               (unsigned long long)s->changed);
}

/* Whether a setting has an effect: epochs have none if steps is above 0, and steps=0 has none. */
static bool counts(const fm_json *cfg, const char *key)
{
    bool by_steps = fm_json_int(fm_json_get(cfg, "steps"), 0) > 0;
    return strcmp(key, by_steps ? "epochs" : "steps") != 0;
}

/* Of an import from a Hub or a URL. */
static void print_source(const fm_json *source)
{
    const char *model = fm_json_cstr(fm_json_get(source, "model"), NULL);
    const char *commit = fm_json_cstr(fm_json_get(source, "commit"), "?");
    const char *file = fm_json_cstr(fm_json_get(source, "file"), NULL);
    if (model)
        printf("Source:  %s at %s%s%s\n", out_text(model, 200), out_text(commit, 60),
               file ? ", " : "", file ? out_text(file, 300) : "");
    else if (source)
        printf("Source:  %s\n", out_text(fm_json_cstr(fm_json_get(source, "url"), "?"), 300));
}

static void print_recipe(const fm_json *recipe)
{
    if (!recipe)
        return;
    const fm_json *data = fm_json_get(recipe, "data");
    printf("Recipe:  %s", out_text(fm_json_cstr(fm_json_get(recipe, "operation"), "?"), 60));
    const fm_json *cfg = fm_json_get(recipe, "config");
    for (void *it = fm_json_iter(cfg); it; it = fm_json_next(cfg, it)) {
        static const char *const shown[] = {"r", "alpha", "lr", "steps", "epochs", "batch", "seed"};
        const fm_json *v = fm_json_iter_value(it);
        for (size_t i = 0; i < FM_ARRAY_LEN(shown); i++)
            if (strcmp(shown[i], fm_json_iter_key(it)) == 0 && counts(cfg, shown[i]))
                printf(" %s=%g", shown[i], fm_json_real(v, 0));
    }
    putchar('\n');
    print_source(fm_json_get(recipe, "source"));
    for (size_t i = 0; i < fm_json_count(data); i++) {
        const fm_json *d = fm_json_at(data, i);
        printf("Data:    %s, %lld of %lld records, sha256 %.16s\n",
               out_text(fm_json_cstr(fm_json_get(d, "name"), "?"), 300),
               (long long)fm_json_int(fm_json_get(d, "used"), 0),
               (long long)fm_json_int(fm_json_get(d, "records"), 0),
               out_text(fm_json_cstr(fm_json_get(d, "sha256"), ""), 100));
    }
}

static void print_paths(const fm_tree *tree, const char *prefix, const char *label)
{
    size_t begin, end;
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++)
        printf("%s%s\n", label, out_text(fm_tree_at(tree, i)->path, 500));
}

static fm_status show_json(const fm_version *v, const fm_tree *tree, const summary *s,
                           const fm_json *recipe)
{
    fm_status rc = FM_OK;
    fm_json *o = fmo_version_json(v), *files = fm_json_new_array();
    fm_json_put(&rc, o, "tensors", fm_json_new_int((int64_t)s->tensors));
    fm_json_put(&rc, o, "values", fm_json_new_int((int64_t)s->elems));
    fm_json_put(&rc, o, "bytes", fm_json_new_int((int64_t)s->tensor_bytes));
    if (s->has_parent)
        fm_json_put(&rc, o, "tensors_changed", fm_json_new_int((int64_t)s->changed));
    for (size_t i = 0; i < fm_tree_count(tree); i++)
        if (fm_tree_at(tree, i)->kind != FM_ENTRY_TENSOR)
            fm_json_push_to(&rc, files, fm_json_new_str(fm_tree_at(tree, i)->path));
    fm_json_put(&rc, o, "files", files);
    if (recipe)
        fm_json_put(&rc, o, "recipe_json", fm_json_copy(recipe));
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    return out_json(o);
}

static void show_text(cli *c, const fm_version *v, const fm_tree *tree, const summary *s,
                      const fm_json *recipe)
{
    char hex[41];
    fm_oid_hex(&v->oid, hex);
    printf("%sversion %s%s\n", out_c(OUT_YELLOW), hex, out_c(OUT_PLAIN));
    printf("Kind:    %s\n", out_text(v->kind, 60));
    for (uint32_t i = 0; i < v->parent_count; i++)
        printf("Parent:  %s\n", fm_ops_short_oid(&v->parent[i]));
    printf("Author:  %s\nDate:    %s\n\n    ", out_text(v->author, 400), out_date(v->time));
    out_line(v->subject, strlen(v->subject));
    putchar('\n');
    print_arch(c, tree);
    print_summary(s);
    print_recipe(recipe);
    print_paths(tree, "suites/", "Suite:   ");
    print_paths(tree, "train.", "Curve:   "); /* train.svg, train.html */
    print_paths(tree, "sweep.json", "Sweep:   ");
    char *note = fmo_tests_note(c, &v->oid);
    if (note)
        printf("Note:    %s\n", note);
    fm_free(note);
}

int cmd_show(cli *c, int argc, char **argv)
{
    bool json = false;
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as a JSON object", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_oid oid;
    fm_tree *tree = NULL;
    fm_json *recipe = NULL;
    fm_version v = {0};
    summary s = {0};
    fm_status rc = fm_ops_resolve(c, rev, &oid, &tree);
    FM_THEN(rc, fm_version_read(c->repo, &v, &oid));
    FM_THEN(rc, summarize(c, &v, tree, &s));
    FM_THEN(rc, fmo_tree_recipe(c, tree, &recipe));
    if (rc == FM_OK && json)
        rc = show_json(&v, tree, &s, recipe);
    else if (rc == FM_OK)
        show_text(c, &v, tree, &s, recipe);
    fm_version_release(&v);
    fm_json_free(recipe);
    fm_tree_free(tree);
    return cli_exit(rc);
}
