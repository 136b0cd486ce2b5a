/* ls.c - fmstore ls and fmstore cat: list and print the entries of a version. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "store/base/mem.h"

/* Splits "rev:path" into rev, copied, and *path, borrowed from spec; "" without a colon. */
static fm_status split_spec(const char *spec, char *rev, size_t rev_bytes, const char **path)
{
    const char *colon = strchr(spec, ':');
    size_t len = colon ? (size_t)(colon - spec) : strlen(spec);
    if (len == 0 || len >= rev_bytes)
        return fm_fail(FM_EINVAL, "'%s': want REV or REV:PATH", spec);
    memcpy(rev, spec, len);
    rev[len] = 0;
    *path = colon ? colon + 1 : "";
    return FM_OK;
}

static bool is_under(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);
    if (n == 0)
        return true;
    return strncmp(path, prefix, n) == 0 &&
           (path[n] == 0 || path[n] == '/' || prefix[n - 1] == '/');
}

static fm_status entry_json(fm_json *array, const fm_entry *e)
{
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = FM_OK;
    static const char *const kinds[] = {"tensor", "blob", "file"};
    fm_json *o = fm_json_new_object();
    fm_digest_hex(&e->id, hex);
    fm_json_put(&rc, o, "path", fm_json_new_str(e->path));
    fm_json_put(&rc, o, "kind", fm_json_new_str(kinds[e->kind]));
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_put(&rc, o, "bytes", fm_json_new_int((int64_t)e->bytes));
    if (e->kind == FM_ENTRY_TENSOR) {
        fm_json *dims = fm_json_new_array();
        for (uint32_t i = 0; i < e->shape.rank; i++)
            fm_json_push_to(&rc, dims, fm_json_new_int((int64_t)e->shape.dim[i]));
        fm_json_put(&rc, o, "name", fm_json_new_str(e->name));
        fm_json_put(&rc, o, "dtype", fm_json_new_str(fm_dtype_get(e->dtype)->name));
        fm_json_put(&rc, o, "shape", dims);
    }
    fm_json_push_to(&rc, array, o);
    return rc;
}

static void entry_row(out_table *t, const fm_entry *e)
{
    char hex[FM_HEX_CHARS + 1], shape[128] = "";
    fm_digest_hex(&e->id, hex);
    if (e->kind == FM_ENTRY_TENSOR)
        fm_shape_text(&e->shape, shape, sizeof shape);
    out_cell(t, "%.10s", hex);
    out_cell_right(t, "%s", out_bytes(e->bytes));
    out_cell(t, "%s", e->kind == FM_ENTRY_TENSOR ? fm_dtype_get(e->dtype)->name : "");
    out_cell(t, "%s", shape);
    out_cell(t, "%s", out_text(e->path, 500));
    out_end_row(t);
}

static fm_status list_tree(const fm_tree *tree, const char *rev, const char *prefix, bool json)
{
    fm_status rc = FM_OK;
    size_t shown = 0;
    fm_json *array = json ? fm_json_new_array() : NULL;
    out_table *t = json ? NULL : out_table_new();
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (!is_under(e->path, prefix))
            continue;
        shown++;
        if (json)
            rc = entry_json(array, e);
        else
            entry_row(t, e);
    }
    out_table_print(t, stdout, "");
    if (rc == FM_OK && !shown)
        rc = fm_fail(FM_ENOTFOUND, "%s holds nothing at '%s'; 'fmstore ls %s' lists all", rev,
                     prefix, rev);
    if (rc == FM_OK && json)
        return out_json(array);
    fm_json_free(array);
    return rc;
}

static fm_status ref_line(void *ctx, const char *name, const fm_oid *oid)
{
    fm_json *array = ctx;
    char hex[41];
    fm_status rc = FM_OK;
    fm_oid_hex(oid, hex);
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "name", fm_json_new_str(strchr(name + 5, '/') + 1));
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_push_to(&rc, array, o);
    return rc;
}

static int ls_branches(cli *c, bool json)
{
    char word[] = "branch";
    char *no_args[] = {word, NULL};
    if (!json)
        return cmd_branch(c, 1, no_args);
    fm_json *array = fm_json_new_array();
    fm_status rc = fm_ops_open(c);
    FM_THEN(rc, fm_ref_each(c->repo, "refs/heads/", ref_line, array));
    if (rc == FM_OK)
        return cli_exit(out_json(array));
    fm_json_free(array);
    return cli_exit(rc);
}

int cmd_ls(cli *c, int argc, char **argv)
{
    bool json = false;
    const char *spec = NULL, *path = "";
    char rev[512];
    size_t n;
    fm_oid oid;
    fm_tree *tree = NULL;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as a JSON array", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &spec, 0, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    if (n == 0)
        return ls_branches(c, json);
    fm_status rc = split_spec(spec, rev, sizeof rev, &path);
    FM_THEN(rc, fm_ops_resolve(c, rev, &oid, &tree));
    FM_THEN(rc, list_tree(tree, rev, path, json));
    fm_tree_free(tree);
    return cli_exit(rc);
}

static fm_status print_tensor_summary(const fm_entry *e, const fm_buf *bytes)
{
    uint64_t n;
    double sum = 0, sq = 0, lo = INFINITY, hi = -INFINITY;
    char shape[128];
    fm_shape_text(&e->shape, shape, sizeof shape);
    printf("name   %s\ndtype  %s\nshape  %s\nbytes  %" PRIu64 "\n", out_text(e->name, 500),
           fm_dtype_get(e->dtype)->name, shape, e->bytes);
    fm_status rc = fm_shape_elems(&n, &e->shape);
    if (rc < 0 || !fm_dtype_get(e->dtype)->is_float || n == 0)
        return rc;
    float *x = fm_malloc(n * sizeof *x);
    rc = x ? fm_to_f32(x, e->dtype, bytes->data, n) : FM_ENOMEM;
    for (uint64_t i = 0; rc == FM_OK && i < n; i++) {
        double v = (double)x[i];
        sum += v;
        sq += v * v;
        lo = fmin(lo, v);
        hi = fmax(hi, v);
    }
    if (rc == FM_OK)
        printf("mean   %.6g\nrms    %.6g\nmin    %.6g\nmax    %.6g\nfirst ", sum / (double)n,
               sqrt(sq / (double)n), lo, hi);
    for (uint64_t i = 0; rc == FM_OK && i < FM_MIN(n, (uint64_t)6); i++)
        printf(" %.6g", (double)x[i]);
    if (rc == FM_OK)
        putchar('\n');
    fm_free(x);
    return rc;
}

int cmd_cat(cli *c, int argc, char **argv)
{
    bool raw = false;
    const char *spec = NULL, *path = "";
    char rev[512];
    size_t n;
    fm_oid oid;
    fm_tree *tree = NULL;
    fm_buf bytes;
    const opt_spec table[] = {
        {0, "raw", OPT_FLAG, NULL, "a tensor's bytes instead of its summary", &raw},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &spec, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_buf_init(&bytes, (size_t)1 << 40);
    fm_status rc = split_spec(spec, rev, sizeof rev, &path);
    FM_THEN(rc, fm_ops_resolve(c, rev, &oid, &tree));
    const fm_entry *e = rc == FM_OK && path[0] ? fm_tree_find(tree, path) : NULL;
    if (rc == FM_OK && !path[0])
        rc = fm_fail(FM_EINVAL, "'%s': want REV:PATH; 'fmstore ls %s' lists the paths", spec, rev);
    else if (rc == FM_OK && !e)
        rc = fm_fail(FM_ENOTFOUND, "%s holds no '%s'; 'fmstore ls %s' lists what it holds", rev,
                     path, rev);
    if (e && e->kind == FM_ENTRY_TENSOR && raw && isatty(STDOUT_FILENO))
        rc = fm_fail(FM_EINVAL, "--raw would write %s of bytes to the terminal; redirect it",
                     out_bytes(e->bytes));
    if (rc == FM_OK && e)
        rc = fm_ops_entry_bytes(c, e, &bytes);
    if (rc == FM_OK && e && e->kind == FM_ENTRY_TENSOR && !raw)
        rc = print_tensor_summary(e, &bytes);
    else if (rc == FM_OK)
        fwrite(bytes.data ? bytes.data : (const uint8_t *)"", 1, bytes.len, stdout);
    fm_buf_release(&bytes);
    fm_tree_free(tree);
    return cli_exit(rc);
}
