/* graph.c - fmstore graph: prints the family tree of all branches, oldest at the top. A version
 * with several parents is printed under its first and names the others. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"
#include "store/base/map.h"
#include "store/base/mem.h"

typedef struct node {
    fm_version v;
    char names[256]; /* its branches and tags */
    size_t *child;
    size_t children, cap;
    bool is_root;
} node;

typedef struct family {
    node **node;
    size_t count, cap;
    fm_map *by_oid; /* oid -> node */
} family;

static fm_status keep(void *ctx, const fm_version *v)
{
    family *f = ctx;
    node *n = fm_calloc(1, sizeof *n);
    if (!n)
        return FM_ENOMEM;
    fm_status rc = fm_grow(&f->node, &f->cap, f->count + 1, sizeof *f->node);
    FM_THEN(rc, fm_map_put(f->by_oid, v->oid.b, sizeof v->oid.b, n, NULL));
    if (rc < 0) {
        fm_free(n);
        return rc;
    }
    n->v = *v;
    n->v.subject = fm_strdup(v->subject);
    n->v.message = fm_strdup(v->message);
    n->v.author = fm_strdup(v->author);
    n->v.recipe = v->recipe ? fm_strdup(v->recipe) : NULL;
    n->v.data = v->data ? fm_strdup(v->data) : NULL;
    f->node[f->count++] = n;
    return n->v.subject && n->v.message && n->v.author ? FM_OK : FM_ENOMEM;
}

static fm_status name_it(void *ctx, const char *ref, const fm_oid *oid)
{
    family *f = ctx;
    node *n = fm_map_get(f->by_oid, oid->b, sizeof oid->b);
    const char *slash = strchr(ref, '/');
    slash = slash ? strchr(slash + 1, '/') : NULL; /* after "refs/heads/" */
    if (!n || !slash)
        return FM_OK;
    size_t len = strlen(n->names);
    snprintf(n->names + len, sizeof n->names - len, "%s%s", len ? ", " : "", slash + 1);
    return FM_OK;
}

static fm_status link_children(family *f)
{
    /* The walk gives children first; going backwards puts older children first. */
    for (size_t i = f->count; i-- > 0;) {
        node *n = f->node[i];
        node *parent = n->v.parent_count
                           ? fm_map_get(f->by_oid, n->v.parent[0].b, sizeof n->v.parent[0].b)
                           : NULL;
        n->is_root = !parent;
        if (!parent)
            continue;
        FM_TRY(fm_grow(&parent->child, &parent->cap, parent->children + 1, sizeof *parent->child));
        parent->child[parent->children++] = i;
    }
    return FM_OK;
}

static void print_node(const node *n, const char *lead, const char *branch)
{
    printf("%s%s%s%s%s  %s  %s: %s", lead, branch, out_c(OUT_BOLD),
           n->names[0] ? out_text(n->names, 500) : "-", out_c(OUT_PLAIN),
           fm_ops_short_oid(&n->v.oid), out_text(n->v.kind, 60), out_text(n->v.subject, 500));
    for (uint32_t i = 1; i < n->v.parent_count; i++)
        printf(" (and from %s)", fm_ops_short_oid(&n->v.parent[i]));
    putchar('\n');
}

#define GRAPH_DEPTH_MAX 200
static void print_below(const family *f, const node *n, char *lead, size_t len, int depth)
{
    for (size_t i = 0; i < n->children; i++) {
        const node *ch = f->node[n->child[i]];
        bool last = i + 1 == n->children;
        lead[len] = 0;
        print_node(ch, lead, last ? "`-- " : "|-- ");
        memcpy(lead + len, last ? "    " : "|   ", 5);
        if (depth < GRAPH_DEPTH_MAX)
            print_below(f, ch, lead, len + 4, depth + 1);
        else if (ch->children)
            printf("%s... more below; 'fmstore log' shows all\n", lead);
    }
}

static fm_status graph_json(const family *f)
{
    fm_status rc = FM_OK;
    fm_json *array = fm_json_new_array();
    for (size_t i = f->count; i-- > 0;) {
        fm_json *o = fmo_version_json(&f->node[i]->v);
        fm_json_put(&rc, o, "names", fm_json_new_str(f->node[i]->names));
        fm_json_push_to(&rc, array, o);
    }
    if (rc == FM_OK)
        return out_json(array);
    fm_json_free(array);
    return rc;
}

static void family_release(family *f)
{
    for (size_t i = 0; i < f->count; i++) {
        fm_version_release(&f->node[i]->v);
        fm_free(f->node[i]->child);
        fm_free(f->node[i]);
    }
    fm_free(f->node);
    fm_map_free(f->by_oid);
}

int cmd_graph(cli *c, int argc, char **argv)
{
    bool json = false;
    size_t n;
    family f = {0};
    char lead[(GRAPH_DEPTH_MAX + 2) * 4 + 16] = "";
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as a JSON array, oldest first", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_status rc = fm_ops_open(c);
    FM_THEN(rc, fm_map_new(&f.by_oid));
    FM_THEN(rc, fm_log_walk(c->repo, NULL, 0, keep, &f));
    FM_THEN(rc, fm_ref_each(c->repo, "refs/heads/", name_it, &f));
    FM_THEN(rc, fm_ref_each(c->repo, "refs/tags/", name_it, &f));
    FM_THEN(rc, fm_ref_each(c->repo, "refs/remotes/", name_it, &f)); /* origin/main */
    FM_THEN(rc, link_children(&f));
    if (rc == FM_OK && json)
        rc = graph_json(&f);
    for (size_t i = f.count; rc == FM_OK && !json && i-- > 0;) {
        if (f.node[i]->is_root) {
            print_node(f.node[i], "", "");
            print_below(&f, f.node[i], lead, 0, 0);
        }
    }
    family_release(&f);
    return cli_exit(rc);
}
