/* stats_codecs.c - prints the codecs of objects, and the reasons. */
#include "cli/cmd/stats_codecs.h"

#include <stdlib.h>
#include <string.h>

#include "cli/base/out.h"
#include "store/base/map.h"
#include "store/base/mem.h"

/* ==== the whole store ====================================================================== */

#define KINDS_MAX 256u

typedef struct kind_use {
    char made[16]; /* "alone", "delta", or the recipe's operation */
    char codec[16];
    uint64_t objects, bytes, stored_bytes;
} kind_use;

typedef struct census {
    fm_store *store;
    kind_use kind[KINDS_MAX];
    size_t kinds;
} census;

static const char *how_made(const fm_coding *k, const fm_object_info *info)
{
    return k->recipe[0] ? k->recipe : info->parent_count ? "delta" : "alone";
}

static kind_use *kind_of(census *c, const char *made, const char *codec)
{
    size_t i = 0;
    while (i < c->kinds &&
           (strcmp(c->kind[i].made, made) != 0 || strcmp(c->kind[i].codec, codec) != 0))
        i++;
    if (i == KINDS_MAX)
        return &c->kind[KINDS_MAX - 1];
    if (i == c->kinds) {
        kind_use *k = &c->kind[c->kinds++];
        memset(k, 0, sizeof *k);
        snprintf(k->made, sizeof k->made, "%s", made);
        snprintf(k->codec, sizeof k->codec, "%s", codec);
    }
    return &c->kind[i];
}

static fm_status count_object(void *ctx, const fm_digest *id)
{
    census *c = ctx;
    fm_object_info info;
    fm_coding k;
    FM_TRY(fm_store_info(c->store, &info, id));
    FM_TRY(fm_store_coding(c->store, &k, id));
    uint64_t head = info.stored_bytes;
    for (uint32_t i = 0; i < k.codecs; i++)
        head -= FM_MIN(head, k.codec[i].stored_bytes);
    for (uint32_t i = 0; i < k.codecs; i++) {
        const struct fm_codec_use *u = &k.codec[i];
        kind_use *to = kind_of(c, u->against ? how_made(&k, &info) : "alone", u->name);
        to->objects++;
        to->bytes += u->bytes;
        to->stored_bytes += u->stored_bytes + (i == 0 ? head : 0); /* the head counts once */
    }
    return FM_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const kind_use *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    const int made = strcmp(x->made, y->made);
    return made ? made : strcmp(x->codec, y->codec);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void print_census(const census *c)
{
    out_table *t = out_table_new();
    out_cell(t, "made");
    out_cell(t, "codec");
    out_cell_right(t, "objects");
    out_cell_right(t, "bytes");
    out_cell_right(t, "stored");
    out_cell_right(t, "%%");
    out_end_row(t);
    for (size_t i = 0; i < c->kinds; i++) {
        const kind_use *k = &c->kind[i];
        out_cell(t, "%s", k->made);
        out_cell(t, "%s", k->codec);
        out_cell_right(t, "%llu", (unsigned long long)k->objects);
        out_cell_right(t, "%s", out_bytes(k->bytes));
        out_cell_right(t, "%s", out_bytes(k->stored_bytes));
        out_cell_right(t, "%.2f", percent(k->stored_bytes, k->bytes));
        out_end_row(t);
    }
    out_table_print(t, stdout, "");
}

static fm_status json_census(const census *c)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < c->kinds; i++) {
        const kind_use *k = &c->kind[i];
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "made", fm_json_new_str(k->made));
        fm_json_put(&rc, o, "codec", fm_json_new_str(k->codec));
        fm_json_put(&rc, o, "objects", fm_json_new_int((int64_t)k->objects));
        fm_json_put(&rc, o, "bytes", fm_json_new_int((int64_t)k->bytes));
        fm_json_put(&rc, o, "stored_bytes", fm_json_new_int((int64_t)k->stored_bytes));
        fm_json_push_to(&rc, list, o);
    }
    if (rc == FM_OK)
        return out_json(list);
    fm_json_free(list);
    return rc;
}

fm_status stats_of_codecs(cli *c, bool json)
{
    census *s = fm_calloc(1, sizeof *s);
    if (!s)
        return FM_ENOMEM;
    s->store = fm_repo_store(c->repo);
    fm_status rc = fm_store_each(s->store, count_object, s);
    if (rc == FM_OK) {
        qsort(s->kind, s->kinds, sizeof s->kind[0], by_bytes);
        if (json)
            rc = json_census(s);
        else
            print_census(s);
    }
    fm_free(s);
    return rc;
}

/* ==== one version ========================================================================== */

typedef struct names {
    cli *c;
    fm_map *of; /* id -> "branch:path"; the texts are in an arena */
    fm_arena *arena;
} names;

static fm_status name_branch(void *ctx, const char *ref, const fm_oid *oid)
{
    names *n = ctx;
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(n->c->repo, &tree, oid);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_FILE || fm_map_has(n->of, e->id.b, FM_DIGEST_BYTES))
            continue;
        const char *branch = ref + strlen("refs/heads/");
        const size_t a = strlen(branch), b = strlen(e->path);
        char *text = fm_arena_alloc(n->arena, a + b + 2);
        if (!text) {
            rc = FM_ENOMEM;
            break;
        }
        memcpy(text, branch, a);
        text[a] = ':';
        memcpy(text + a + 1, e->path, b);
        rc = fm_map_put(n->of, e->id.b, FM_DIGEST_BYTES, text, NULL);
    }
    fm_tree_free(tree);
    return rc;
}

static const char *name_of(const names *n, const fm_digest *id, char hex[FM_HEX_CHARS + 1])
{
    const char *name = fm_map_get(n->of, id->b, FM_DIGEST_BYTES);
    fm_digest_hex(id, hex);
    hex[12] = name ? hex[12] : '\0';
    return name ? name : hex;
}

/* Writes the reason for a coding, such as "12 of 14 leaves as predicted". */
static void why_of(char *out, size_t bytes, const fm_coding *k, const fm_object_info *info)
{
    uint32_t leaves = 0, same = 0, against = 0;
    for (uint32_t i = 0; i < k->codecs; i++) {
        leaves += k->codec[i].leaves;
        against += k->codec[i].against ? k->codec[i].leaves : 0;
        same += strcmp(k->codec[i].name, "same") == 0 ? k->codec[i].leaves : 0;
    }
    const char *what = k->recipe[0] ? "what the recipe predicts" : "the parent's";
    if (!info->parent_count)
        snprintf(out, bytes, "no relation that made it smaller was at hand");
    else if (same == leaves)
        snprintf(out, bytes, "all %u leaves are %s", leaves, what);
    else if (same)
        snprintf(out, bytes, "%u of %u leaves are %s, %u differ a little", same, leaves, what,
                 against - same);
    else
        snprintf(out, bytes, "%u of %u leaves are near %s", against, leaves, what);
}

typedef struct row {
    const fm_entry *e;
    fm_object_info info;
    fm_coding k;
    char why[96];
} row;

static fm_status read_row(cli *c, const fm_entry *e, row *out)
{
    fm_store *s = fm_repo_store(c->repo);
    out->e = e;
    fm_status rc = fm_store_info(s, &out->info, &e->id);
    FM_THEN(rc, fm_store_coding(s, &out->k, &e->id));
    if (rc != FM_OK)
        return fm_error_prefix(rc, "%s", e->path);
    why_of(out->why, sizeof out->why, &out->k, &out->info);
    return FM_OK;
}

static void print_row(const names *n, const row *r)
{
    char hex[FM_HEX_CHARS + 1];
    printf("%s  %s %s of %s (%.2f %%)", out_text(r->e->path, 500), fm_dtype_get(r->e->dtype)->name,
           out_bytes(r->info.stored_bytes), out_bytes(r->info.bytes),
           percent(r->info.stored_bytes, r->info.bytes));
    for (uint32_t i = 0; i < r->k.codecs; i++)
        printf(" %s x%u", r->k.codec[i].name, r->k.codec[i].leaves);
    printf("\n    %s%s%s%s; %s\n", how_made(&r->k, &r->info), r->k.detail[0] ? " (" : "",
           r->k.detail, r->k.detail[0] ? ")" : "", r->why);
    for (uint32_t i = 0; i < r->info.parent_count; i++)
        printf("    from %s\n", name_of(n, &r->info.parent[i], hex));
}

static fm_json *row_json(const names *n, const row *r)
{
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *parents = fm_json_new_array(), *codecs = NULL;
    fm_json_put(&rc, o, "path", fm_json_new_str(r->e->path));
    fm_json_put(&rc, o, "dtype", fm_json_new_str(fm_dtype_get(r->e->dtype)->name));
    fm_json_put(&rc, o, "bytes", fm_json_new_int((int64_t)r->info.bytes));
    fm_json_put(&rc, o, "stored_bytes", fm_json_new_int((int64_t)r->info.stored_bytes));
    fm_json_put(&rc, o, "depth", fm_json_new_int(r->info.chain_depth));
    fm_json_put(&rc, o, "made", fm_json_new_str(how_made(&r->k, &r->info)));
    fm_json_put(&rc, o, "detail", fm_json_new_str(r->k.detail));
    fm_json_put(&rc, o, "why", fm_json_new_str(r->why));
    for (uint32_t i = 0; i < r->info.parent_count; i++)
        fm_json_push_to(&rc, parents, fm_json_new_str(name_of(n, &r->info.parent[i], hex)));
    fm_json_put(&rc, o, "parents", parents);
    codecs = fm_json_new_object();
    for (uint32_t i = 0; i < r->k.codecs; i++)
        fm_json_put(&rc, codecs, r->k.codec[i].name, fm_json_new_int(r->k.codec[i].leaves));
    fm_json_put(&rc, o, "leaves", codecs);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_status show_tensors(cli *c, const names *n, const fm_tree *tree, bool json)
{
    fm_json *list = json ? fm_json_new_array() : NULL;
    uint64_t bytes = 0, stored = 0;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        row r;
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        rc = read_row(c, e, &r);
        if (rc == FM_OK && json)
            fm_json_push_to(&rc, list, row_json(n, &r));
        else if (rc == FM_OK)
            print_row(n, &r);
        bytes += rc == FM_OK ? r.info.bytes : 0;
        stored += rc == FM_OK ? r.info.stored_bytes : 0;
    }
    if (rc == FM_OK && json)
        return out_json(list);
    if (rc == FM_OK)
        printf("all tensors: %s of %s, %.2f %% of raw; their parents stand on their own\n",
               out_bytes(stored), out_bytes(bytes), percent(stored, bytes));
    fm_json_free(list);
    return rc;
}

fm_status stats_of_version(cli *c, const char *rev, bool json)
{
    names n = {.c = c};
    fm_tree *tree = NULL;
    fm_oid oid;
    fm_status rc = fm_ops_resolve(c, rev, &oid, &tree);
    FM_THEN(rc, fm_map_new(&n.of));
    FM_THEN(rc, fm_arena_new(&n.arena));
    FM_THEN(rc, fm_ref_each(c->repo, "refs/heads/", name_branch, &n));
    FM_THEN(rc, show_tensors(c, &n, tree, json));
    fm_map_free(n.of);
    fm_arena_free(n.arena);
    fm_tree_free(tree);
    return rc;
}
