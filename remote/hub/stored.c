/* stored.c - files that the store can make again, by their digests.
 *
 * Versions name the files that they were imported from in source/source.json, which is read by its
 * path alone; versions that share one (branches of an import) are read once. */
#include "remote/hub/stored.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/source.h"

static const char source_json[] = "source/source.json";

typedef struct search {
    fm_repo *repo;
    fmr_stored_ask *ask;
    size_t count, left;
    fm_map *seen; /* ids of source.json files */
} search;

static fm_status look_in(search *s, const fm_json *spec, const fm_oid *oid)
{
    const fm_json *files = fm_json_get(spec, "files");
    for (size_t i = 0; i < fm_json_count(files); i++) {
        const char *hex = fm_json_cstr(fm_json_get(fm_json_at(files, i), "sha256"), "");
        fm_digest digest;
        if (!fm_digest_parse(&digest, hex, strlen(hex)))
            continue;
        for (size_t k = 0; k < s->count; k++)
            if (!s->ask[k].found && fm_digest_eq(&s->ask[k].sha256, &digest)) {
                s->ask[k].found = true;
                s->ask[k].oid = *oid;
                s->left--;
            }
    }
    return FM_OK;
}

static fm_status look_at(search *s, const fm_oid *oid)
{
    fm_tree *tree = NULL;
    fm_json *spec = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_version_entry(s->repo, &tree, oid, source_json);
    const fm_entry *e = rc == FM_OK ? fm_tree_find(tree, source_json) : NULL;
    if (e && !fm_map_has(s->seen, e->id.b, sizeof e->id.b)) {
        const fm_provider p = fm_store_provider(fm_repo_store(s->repo));
        rc = fm_map_put(s->seen, e->id.b, sizeof e->id.b, s, NULL);
        FM_THEN(rc, fm_entry_read(&text, &p, e));
        FM_THEN(rc, fm_json_parse(&spec, fm_buf_span(&text), source_json));
        FM_THEN(rc, look_in(s, spec, oid));
    }
    fm_json_free(spec);
    fm_buf_release(&text);
    fm_tree_free(tree);
    return rc;
}

static fm_status on_version(void *ctx, const fm_version *v)
{
    search *s = ctx;
    FM_TRY(fm_go_on());
    fm_status rc = look_at(s, &v->oid);
    if (rc == FM_ENOMEM)
        return rc;
    if (rc != FM_OK)
        fm_error_clear(); /* made here, or damaged: its files come from elsewhere */
    return s->left == 0 ? FM_ECANCELLED : FM_OK; /* which ends the walk quietly */
}

fm_status fmr_stored_find(fm_repo *r, fmr_stored_ask *ask, size_t count)
{
    search s = {.repo = r, .ask = ask, .count = count, .left = count};
    for (size_t i = 0; i < count; i++)
        ask[i].found = false;
    if (count == 0)
        return FM_OK;
    FM_TRY(fm_map_new(&s.seen));
    fm_status rc = fm_log_walk(r, NULL, 0, on_version, &s);
    fm_map_free(s.seen);
    FM_THEN(rc, fm_go_on()); /* the walk ends quietly also where the process is to stop */
    return rc;
}

fm_status fmr_stored_write(fm_repo *r, const fmr_stored_ask *ask, const char *path)
{
    fm_tree *tree = NULL;
    const fm_provider p = fm_store_provider(fm_repo_store(r));
    fm_status rc = fm_version_tree(r, &tree, &ask->oid);
    FM_THEN(rc, fm_export_file(tree, &p, &ask->sha256, path));
    fm_tree_free(tree);
    return rc;
}
