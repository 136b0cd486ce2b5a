/* ranks_follow.c - the work of a rank other than 0 of an engine whose models are split. */
#include "cli/ops/base/ranks.h"

static fm_status hear_engine(fm_ops *c, fm_json **said, const char **repo)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_comm_tell_buf(c->comm, &text, 0);
    FM_THEN(rc, fm_json_parse(said, fm_buf_span(&text), "what rank 0 says"));
    fm_buf_release(&text);
    if (rc != FM_OK)
        return rc;
    *repo = fm_json_cstr(fm_json_get(*said, "repo"), ".");
    c->mode = fm_json_cstr(fm_json_get(*said, "mode"), "exact");
    c->device = fm_json_cstr(fm_json_get(*said, "device"), NULL);
    c->threads = (unsigned)fm_json_int(fm_json_get(*said, "threads"), 0);
    c->stages = (uint32_t)fm_json_int(fm_json_get(*said, "stages"), 0);
    c->weight_bytes_max = (uint64_t)fm_json_int(fm_json_get(*said, "weights"), 0);
    c->kv_bytes_max = (uint64_t)fm_json_int(fm_json_get(*said, "kv"), 0);
    c->step_timeout_s = (uint32_t)fm_json_int(fm_json_get(*said, "step_timeout"), 0);
    c->keep_stored = fm_json_bool(fm_json_get(*said, "stored"), false);
    c->keep_packed = fm_json_bool(fm_json_get(*said, "packed"), false);
    return FM_OK;
}

fm_status fmo_ranks_follow(fm_ops *c)
{
    fm_error_state why;
    fm_json *said = NULL;
    const char *repo = NULL;
    fm_status rc = fmo_ranks_open(c, false);
    FM_THEN(rc, hear_engine(c, &said, &repo));
    FM_THEN(rc, fm_repo_open(&c->repo, repo));
    if (rc == FM_OK && fm_store_lease(fm_repo_store(c->repo), false, "a rank's model") != FM_OK)
        fm_error_clear(); /* read-only: gc cannot delete there either */
    FM_THEN(rc, fm_ops_engine(c));
    if (rc == FM_OK) {
        fm_provider p = fm_store_provider(fm_repo_store(c->repo));
        rc = fm_engine_follow(c->engine, &p);
    }
    fm_error_save(&why);
    fm_engine_free(c->engine);
    c->engine = NULL;
    c->mode = c->device = NULL; /* they lie in *said */
    fm_json_free(said);
    fm_error_restore(&why);
    return rc;
}
