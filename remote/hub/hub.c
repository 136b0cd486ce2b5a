/* hub.c - brings a model here: asks the Hub what it is, then takes each file from the cheapest
 * place that has it: the cache, a version of the repository, the network. */
#include "remote/hub.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "remote/hub/cache.h"
#include "remote/hub/fetch.h"
#include "remote/hub/stored.h"
#include "store/base/mem.h"

#define MAX_INDEX_BYTES ((size_t)256 << 20)
#define MAX_NOTES 20u
#define MAX_LEFT_OUT 200u /* named in the recipe */

struct fmr_hub_model {
    fmr_hub_env env;
    fmr_address address;
    fmr_listing list; /* empty: of a URL, or offline */
    fmr_gathering gathering;
    char commit[41]; /* "": of a URL */
    char *what;      /* "hf:org/name@rev": for errors */
    char *page;      /* the model's page, or a file's URL without its query */
    char *name, *path;
};

/* What a call of fmr_hub_get has in hand. */
typedef struct getting {
    const fmr_hub_opts *o;
    fmr_hub_model *m;
    uint64_t fetched, cached, stored; /* bytes, by where they came from */
    size_t fetched_count, cached_count, stored_count;
} getting;

bool fmr_hub_is_address(const char *src)
{
    return strncmp(src, "hf:", 3) == 0 || strncmp(src, "http://", 7) == 0 ||
           strncmp(src, "https://", 8) == 0;
}

static void note(const getting *g, const char *fmt, ...) FM_PRINTF(2, 3);
static void note(const getting *g, const char *fmt, ...)
{
    char text[1200];
    va_list args;
    if (!g->o->note)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    g->o->note(g->o->ctx, text);
}

/* ==== what the Hub says ==== */

static char *api_url(const fmr_hub_model *m)
{
    fm_buf url;
    fm_buf_init(&url, 0);
    fm_buf_printf(&url, "%s/api/models/%s/revision/", m->env.endpoint, m->address.repo);
    fmr_url_escape(&url, m->address.revision, false);
    fm_buf_str(&url, "?blobs=true");
    char *text = fm_buf_take(&url);
    fm_buf_release(&url);
    return text;
}

static fm_status ask_hub(fmr_hub_model *m)
{
    fmr_http *http = NULL;
    fmr_answer a = {.status = 0};
    char *url = api_url(m);
    const fmr_request q = {.method = "GET", .url = url, .bearer = m->env.token};
    fm_status rc = url ? fmr_http_open(&http, NULL) : FM_ENOMEM;
    if (rc == FM_OK && (rc = fmr_http_do(http, &q, &a)) != FM_OK)
        rc = fm_error_prefix(rc, "%s", m->what);
    FM_THEN(rc, fmr_hub_explain(&a, m->what, m->page, m->env.token != NULL));
    FM_THEN(rc, fmr_listing_parse(&m->list, fm_buf_span(&a.body), m->what));
    if (rc == FM_OK)
        memcpy(m->commit, m->list.commit, sizeof m->commit);
    fmr_answer_release(&a);
    fmr_http_close(http);
    fm_free(url);
    return rc;
}

/* ==== where files come from ==== */

static fm_status set_path(fmr_hub_model *m, const char *folder)
{
    m->path = m->address.file ? fm_path_join(folder, m->address.file) : fm_strdup(folder);
    return m->path ? FM_OK : FM_ENOMEM;
}

static fm_status choose_shards(fmr_hub_model *m, const char *folder)
{
    char *path = fm_path_join(folder, m->list.index);
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = path ? fm_read_file(&text, path, MAX_INDEX_BYTES) : FM_ENOMEM;
    FM_THEN(rc, fmr_listing_choose_shards(&m->list, fm_buf_span(&text), m->what));
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

/* Takes the cache's snapshot where it has all files. *yes: m->path is set. */
static fm_status use_snapshot(getting *g, bool *yes)
{
    fmr_hub_model *m = g->m;
    char *folder;
    *yes = false;
    FM_TRY(fmr_cache_snapshot(&folder, &m->env, m->address.repo, m->commit));
    if (!folder)
        return FM_OK;
    fm_status rc = fmr_folder_has_all(yes, folder, &m->list);
    if (rc == FM_OK && *yes && m->list.index) {
        rc = choose_shards(m, folder);
        FM_THEN(rc, fmr_folder_has_all(yes, folder, &m->list));
    }
    if (rc == FM_OK && *yes) {
        note(g, "%s at %.12s is in the cache, which is read in place", m->what, m->commit);
        rc = set_path(m, folder);
    }
    fm_free(folder);
    return rc;
}

static fm_status link_from_cache(getting *g, const fmr_hub_file *f, bool *done)
{
    fmr_hub_model *m = g->m;
    char *blob, *path = NULL;
    *done = false;
    FM_TRY(fmr_cache_blob(&blob, &m->env, m->address.repo, f));
    if (!blob)
        return FM_OK;
    fm_status rc = fmr_path_for(&path, m->gathering.files, f->name);
    FM_THEN(rc, fm_remove_file(path)); /* one of another size */
    FM_THEN(rc, fm_link_file(blob, path));
    if (rc == FM_OK) {
        *done = true;
        g->cached += f->bytes;
        g->cached_count++;
    }
    fm_free(blob);
    fm_free(path);
    return rc;
}

/* The files that are to be taken and are not in the folder yet. */
typedef struct missing {
    fmr_hub_file **file;
    fmr_stored_ask *ask; /* of the LFS files among them */
    size_t count, cap, asks, ask_cap;
} missing;

static fm_status find_missing(getting *g, missing *out)
{
    const fmr_listing *l = &g->m->list;
    for (size_t i = 0; i < l->count; i++) {
        fmr_hub_file *f = &l->file[i];
        bool there = !f->take;
        if (f->take)
            FM_TRY(fmr_folder_has(&there, g->m->gathering.files, f));
        if (!there)
            FM_TRY(link_from_cache(g, f, &there));
        if (there)
            continue;
        FM_TRY(fm_grow(&out->file, &out->cap, out->count + 1, sizeof *out->file));
        out->file[out->count++] = f;
        if (!f->lfs)
            continue;
        FM_TRY(fm_grow(&out->ask, &out->ask_cap, out->asks + 1, sizeof *out->ask));
        out->ask[out->asks++] = (fmr_stored_ask){.sha256 = f->sha256};
    }
    return FM_OK;
}

static const fmr_stored_ask *answer_for(const missing *s, const fmr_hub_file *f)
{
    for (size_t i = 0; f->lfs && i < s->asks; i++)
        if (s->ask[i].found && fm_digest_eq(&s->ask[i].sha256, &f->sha256))
            return &s->ask[i];
    return NULL;
}

/* Makes what the repository has; what it cannot make is left to the network. */
static fm_status take_from_store(getting *g, missing *s)
{
    size_t left = 0;
    FM_TRY(fmr_stored_find(g->o->repo, s->ask, s->asks));
    for (size_t i = 0; i < s->count; i++) {
        fmr_hub_file *f = s->file[i];
        const fmr_stored_ask *from = answer_for(s, f);
        char *path = NULL;
        fm_status rc = from ? fmr_path_for(&path, g->m->gathering.files, f->name) : FM_ENOTFOUND;
        if (from)
            FM_THEN(rc, fm_remove_file(path));
        FM_THEN(rc, fmr_stored_write(g->o->repo, from, path));
        fm_free(path);
        if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
            return rc;
        if (rc == FM_OK) {
            g->stored += f->bytes;
            g->stored_count++;
        } else {
            fm_error_clear();
            s->file[left++] = f;
        }
    }
    s->count = left;
    return FM_OK;
}

typedef struct job_texts {
    char *what, *url, *part, *path;
} job_texts;

static char *file_url(const fmr_hub_model *m, const char *file)
{
    fm_buf url;
    fm_buf_init(&url, 0);
    fm_buf_printf(&url, "%s/%s/resolve/%s/", m->env.endpoint, m->address.repo, m->commit);
    fmr_url_escape(&url, file, true);
    char *text = fm_buf_take(&url);
    fm_buf_release(&url);
    return text;
}

static fm_status make_job(fmr_fetch_job *job, job_texts *t, const fmr_hub_model *m,
                          const fmr_hub_file *f)
{
    t->what = fm_asprintf("%s: %s", m->what, f->name);
    t->url = file_url(m, f->name);
    fm_status rc = t->what && t->url ? FM_OK : FM_ENOMEM;
    /* Parts lie side by side: a digest is a name without folders. */
    FM_THEN(rc, fmr_path_for(&t->part, m->gathering.parts, f->etag));
    FM_THEN(rc, fmr_path_for(&t->path, m->gathering.files, f->name));
    *job = (fmr_fetch_job){
        .what = t->what, .url = t->url, .part = t->part, .path = t->path, .file = f};
    return rc;
}

static void release_jobs(fmr_fetch_job *job, job_texts *t, size_t count)
{
    for (size_t i = 0; t && i < count; i++) {
        fm_free(t[i].what);
        fm_free(t[i].url);
        fm_free(t[i].part);
        fm_free(t[i].path);
    }
    fm_free(t);
    fm_free(job);
}

static fm_status fetch(getting *g, const fmr_fetch_job *job, size_t count)
{
    const fmr_fetch f = {.job = job,
                         .count = count,
                         .token = g->m->address.url ? NULL : g->m->env.token,
                         .page = g->m->page,
                         .progress = g->o->progress,
                         .ctx = g->o->ctx};
    return fmr_fetch_all(&f);
}

/* Two files of the same bytes have one part: the second is copied from the first. */
static bool is_double(const missing *s, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(s->file[k]->etag, s->file[i]->etag) == 0)
            return true;
    return false;
}

static fm_status copy_doubles(getting *g, const missing *s)
{
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < i; k++) {
            if (strcmp(s->file[k]->etag, s->file[i]->etag) != 0)
                continue;
            char *from = NULL, *to = NULL;
            fm_status rc = fmr_path_for(&from, g->m->gathering.files, s->file[k]->name);
            FM_THEN(rc, fmr_path_for(&to, g->m->gathering.files, s->file[i]->name));
            FM_THEN(rc, fm_remove_file(to));
            FM_THEN(rc, fm_link_file(from, to));
            fm_free(from);
            fm_free(to);
            FM_TRY(rc);
            break;
        }
    return FM_OK;
}

static fm_status download(getting *g, const missing *s)
{
    fmr_fetch_job *job = fm_calloc(s->count + 1, sizeof *job);
    job_texts *texts = fm_calloc(s->count + 1, sizeof *texts);
    size_t count = 0;
    fm_status rc = job && texts ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < s->count; i++) {
        if (is_double(s, i))
            continue;
        rc = make_job(&job[count], &texts[count], g->m, s->file[i]);
        g->fetched += s->file[i]->bytes;
        count++;
    }
    FM_THEN(rc, fetch(g, job, count));
    FM_THEN(rc, copy_doubles(g, s));
    g->fetched_count += count;
    release_jobs(job, texts, s->count);
    return rc;
}

static fm_status gather(getting *g)
{
    missing s = {.file = NULL};
    fm_status rc = find_missing(g, &s);
    if (rc == FM_OK && s.asks > 0)
        rc = take_from_store(g, &s);
    if (rc == FM_OK && s.count > 0 && g->m->env.offline)
        rc = fm_fail(FM_EIO, "%s: HF_HUB_OFFLINE is set, and %s is not here", g->m->what,
                     s.file[0]->name);
    FM_THEN(rc, download(g, &s));
    fm_free(s.file);
    fm_free(s.ask);
    return rc;
}

/* ==== the whole ==== */

static fm_status key_of(char out[17], const fmr_hub_model *m)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest digest;
    fm_buf text;
    fm_buf_init(&text, 0);
    if (m->address.url)
        fm_buf_str(&text, m->address.url);
    else
        fm_buf_printf(&text, "%s %s %s", m->env.endpoint, m->address.repo, m->commit);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, fm_sha256(&digest, text.data, text.len));
    if (rc == FM_OK) {
        fm_digest_hex(&digest, hex);
        memcpy(out, hex, 16);
        out[16] = '\0';
    }
    fm_buf_release(&text);
    return rc;
}

static fm_status open_gathering(getting *g)
{
    char key[17];
    FM_TRY(key_of(key, g->m));
    return fmr_gathering_open(&g->m->gathering, fm_repo_path(g->o->repo), key);
}

static void tell_left_out(const getting *g)
{
    const fmr_listing *l = &g->m->list;
    size_t count = 0, more = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; !g->m->address.file && i < l->count; i++) {
        if (l->file[i].take)
            continue;
        if (++count <= MAX_NOTES) {
            note(g, "not downloaded: '%.200s' (%" PRIu64 " bytes), %s", l->file[i].name,
                 l->file[i].bytes, l->file[i].why_not ? l->file[i].why_not : "not asked for");
        } else {
            more++;
            bytes += l->file[i].bytes;
        }
    }
    if (more)
        note(g, "not downloaded: %zu more (%" PRIu64 " bytes)", more, bytes);
}

static void add_share(fm_buf *out, size_t files, uint64_t bytes, const char *from)
{
    if (files > 0)
        fm_buf_printf(out, "%s %zu file%s %s (%" PRIu64 " bytes)", out->len > 0 ? "," : "", files,
                      files == 1 ? "" : "s", from, bytes);
}

static void tell_taken(const getting *g)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    add_share(&text, g->fetched_count, g->fetched, "downloaded");
    add_share(&text, g->cached_count, g->cached, "from the cache");
    add_share(&text, g->stored_count, g->stored, "from versions that are here");
    note(g, "%s at %.12s:%s", g->m->what, g->m->commit,
         text.len > 0 ? fm_buf_cstr(&text) : " an earlier call downloaded all files");
    fm_buf_release(&text);
}

static fm_status bring_files(getting *g)
{
    fmr_hub_model *m = g->m;
    FM_TRY(open_gathering(g));
    FM_TRY(gather(g));
    if (m->list.index) {
        FM_TRY(choose_shards(m, m->gathering.files));
        FM_TRY(gather(g));
    }
    tell_taken(g);
    return set_path(m, m->gathering.files);
}

/* The Hub does not answer: what the cache had of that revision. why: the failure, kept where the
 * cache has nothing. */
static fm_status use_cache_alone(getting *g, fm_status why)
{
    fmr_hub_model *m = g->m;
    fm_error_state kept;
    char *folder = NULL;
    fm_error_save(&kept);
    fm_status rc = fmr_cache_commit(m->commit, &m->env, m->address.repo, m->address.revision);
    if (rc == FM_OK && m->commit[0])
        rc = fmr_cache_snapshot(&folder, &m->env, m->address.repo, m->commit);
    if (rc == FM_OK && folder) {
        rc = set_path(m, folder);
        if (rc == FM_OK && !fm_path_exists(m->path))
            rc = fm_fail(FM_ENOTFOUND, "%s: the cache has no file '%s' of it", m->what,
                         m->address.file);
        if (rc == FM_OK)
            note(g, "%s: taken from the cache as it was, %.12s", /* the failure's text names it */
                 why == FM_OK ? "HF_HUB_OFFLINE is set" : kept.text, m->commit);
    } else if (rc == FM_OK) {
        fm_error_restore(&kept);
        rc = why != FM_OK
                 ? why
                 : fm_fail(FM_ENOTFOUND,
                           "%s: HF_HUB_OFFLINE is set, and the cache does not have it", m->what);
    }
    fm_free(folder);
    return rc;
}

static fm_status get_model(getting *g)
{
    fmr_hub_model *m = g->m;
    bool here = false;
    if (m->env.offline)
        return use_cache_alone(g, FM_OK);
    (void)(g->o->progress && g->o->progress(g->o->ctx, 0, 0));
    fm_status rc = ask_hub(m);
    if (rc == FM_EIO)
        return use_cache_alone(g, rc);
    if (rc == FM_OK)
        rc = m->address.file ? fmr_listing_choose_one(&m->list, m->address.file, m->what)
                             : fmr_listing_choose(&m->list, m->what);
    FM_THEN(rc, use_snapshot(g, &here));
    if (rc == FM_OK && !here)
        rc = bring_files(g);
    if (rc == FM_OK && !here) /* import names what a cache has beyond it */
        tell_left_out(g);
    return rc;
}

static fm_status get_url(getting *g)
{
    fmr_hub_model *m = g->m;
    char *part = NULL, *path = NULL;
    FM_TRY(open_gathering(g));
    fm_status rc = fmr_path_for(&part, m->gathering.parts, m->address.file);
    FM_THEN(rc, fmr_path_for(&path, m->gathering.files, m->address.file));
    const fmr_fetch_job job = {
        .what = m->what, .url = m->address.url, .part = part, .path = path, .file = NULL};
    FM_THEN(rc, fetch(g, &job, 1));
    FM_THEN(rc, set_path(m, m->gathering.files));
    fm_free(part);
    fm_free(path);
    return rc;
}

static fm_status set_names(fmr_hub_model *m)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    if (m->address.url) {
        fmr_url_shown(&b, m->address.url);
        m->page = fm_strdup(fm_buf_cstr(&b));
        m->what = fm_strdup(fm_buf_cstr(&b));
        m->name = fm_strdup(m->address.file);
    } else {
        m->page = fm_asprintf("%s/%s", m->env.endpoint, m->address.repo);
        m->what = fm_asprintf("hf:%s@%s", m->address.repo, m->address.revision);
        m->name = m->address.file ? fm_asprintf("%s/%s", m->address.repo, m->address.file)
                                  : fm_strdup(m->address.repo);
    }
    fm_buf_release(&b);
    return m->page && m->what && m->name ? FM_OK : FM_ENOMEM;
}

fm_status fmr_hub_get(fmr_hub_model **out, const fmr_hub_opts *opts, const char *src)
{
    fmr_hub_model *m = fm_calloc(1, sizeof *m);
    getting g = {.o = opts, .m = m};
    *out = NULL;
    if (!m)
        return FM_ENOMEM;
    fm_status rc = fmr_hub_env_read(&m->env);
    FM_THEN(rc, fmr_address_parse(&m->address, src, m->env.endpoint));
    FM_THEN(rc, set_names(m));
    FM_THEN(rc, m->address.url ? get_url(&g) : get_model(&g));
    if (rc == FM_OK)
        *out = m;
    else
        fmr_hub_close(m, false);
    return rc;
}

void fmr_hub_close(fmr_hub_model *m, bool done)
{
    if (!m)
        return;
    fm_error_state kept;
    fm_error_save(&kept);
    fmr_gathering_close(&m->gathering, done);
    fm_error_restore(&kept);
    fmr_hub_env_release(&m->env);
    fmr_address_release(&m->address);
    fmr_listing_release(&m->list);
    fm_free(m->what);
    fm_free(m->page);
    fm_free(m->name);
    fm_free(m->path);
    fm_free(m);
}

const char *fmr_hub_path(const fmr_hub_model *m)
{
    return m->path;
}

const char *fmr_hub_name(const fmr_hub_model *m)
{
    return m->name;
}

/* ==== what the version keeps of it ==== */

static fm_json *left_out_json(const fmr_listing *l)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    size_t count = 0;
    for (size_t i = 0; i < l->count && count < MAX_LEFT_OUT; i++) {
        if (l->file[i].take)
            continue;
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "name", fm_json_new_str(l->file[i].name));
        fm_json_put(&rc, o, "bytes", fm_json_new_int((int64_t)l->file[i].bytes));
        fm_json_push_to(&rc, list, o);
        count++;
    }
    if (rc == FM_OK)
        return list;
    fm_json_free(list);
    return NULL;
}

fm_json *fmr_hub_origin(const fmr_hub_model *m)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "url", fm_json_new_str(m->page));
    if (m->address.repo) {
        fm_json_put(&rc, o, "model", fm_json_new_str(m->address.repo));
        fm_json_put(&rc, o, "revision", fm_json_new_str(m->address.revision));
        fm_json_put(&rc, o, "commit", fm_json_new_str(m->commit));
        if (m->address.file)
            fm_json_put(&rc, o, "file", fm_json_new_str(m->address.file));
        else if (m->list.count > 0)
            fm_json_put(&rc, o, "left_out", left_out_json(&m->list));
    }
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static const char *sha_of(const fm_json *source_json, const char *name)
{
    const fm_json *files = fm_json_get(source_json, "files");
    for (size_t i = 0; i < fm_json_count(files); i++) {
        const fm_json *f = fm_json_at(files, i);
        if (strcmp(fm_json_cstr(fm_json_get(f, "name"), ""), name) == 0)
            return fm_json_cstr(fm_json_get(f, "sha256"), "");
    }
    return NULL;
}

fm_status fmr_hub_check(const fmr_hub_model *m, const fm_json *source_json)
{
    for (size_t i = 0; i < m->list.count; i++) {
        const fmr_hub_file *f = &m->list.file[i];
        if (!f->take || !f->lfs)
            continue;
        const char *have = sha_of(source_json, m->address.file ? fm_path_base(f->name) : f->name);
        if (have && strcmp(have, f->etag) != 0)
            return fm_fail(
                FM_ECORRUPT,
                "%s: %s has the SHA-256 %.16s..., the Hub's has %.16s...: it is damaged; "
                "%s",
                m->what, f->name, have, f->etag,
                m->gathering.dir ? "import it again" : "remove it from the cache");
    }
    return FM_OK;
}
