/* manifest.c - reads and writes the list of what a bucket holds. */
#include "remote/bucket/manifest.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/text/json.h"

static const fm_oid no_oid;

bool fmr_oid_parse(fm_oid *out, fm_span hex)
{
    static const char digits[] = "0123456789abcdef";
    if (hex.len != 2 * sizeof out->b)
        return false;
    for (size_t i = 0; i < hex.len; i++) {
        const char *at = memchr(digits, hex.data[i], 16);
        if (!at)
            return false;
        const unsigned v = (unsigned)(at - digits);
        out->b[i / 2] = (uint8_t)(i % 2 ? out->b[i / 2] | v : v << 4);
    }
    return true;
}

void fmr_manifest_release(fmr_manifest *m)
{
    for (size_t i = 0; i < m->refs; i++)
        fm_free(m->ref[i].name);
    for (size_t i = 0; i < m->gits; i++)
        fm_free(m->git[i].tip);
    fm_free(m->ref);
    fm_free(m->pack);
    fm_free(m->git);
    memset(m, 0, sizeof *m);
}

/* ---- changing it ---- */

struct fmr_bucket_ref *fmr_manifest_ref(const fmr_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->refs; i++)
        if (strcmp(m->ref[i].name, name) == 0)
            return &m->ref[i];
    return NULL;
}

static fm_status add_ref(fmr_manifest *m, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    FM_TRY(fm_grow(&m->ref, &m->ref_cap, m->refs + 1, sizeof *m->ref));
    m->ref[m->refs] = (struct fmr_bucket_ref){fm_strdup(name), *oid, *peeled};
    if (!m->ref[m->refs].name)
        return FM_ENOMEM;
    m->refs++;
    return FM_OK;
}

fm_status fmr_manifest_set_ref(fmr_manifest *m, const char *name, const fm_oid *oid,
                               const fm_oid *peeled)
{
    struct fmr_bucket_ref *ref = fmr_manifest_ref(m, name);
    if (!ref)
        return fm_oid_eq(oid, &no_oid) ? FM_OK : add_ref(m, name, oid, peeled);
    if (!fm_oid_eq(oid, &no_oid)) {
        ref->oid = *oid;
        ref->peeled = *peeled;
        return FM_OK;
    }
    fm_free(ref->name);
    m->refs--;
    memmove(ref, ref + 1, (size_t)(m->ref + m->refs - ref) * sizeof *ref);
    return FM_OK;
}

fm_status fmr_manifest_add_pack(fmr_manifest *m, const struct fmr_bucket_pack *p)
{
    for (size_t i = 0; i < m->packs; i++)
        if (fm_digest_eq(&m->pack[i].name, &p->name) && !m->pack[i].gone)
            return FM_OK;
    FM_TRY(fm_grow(&m->pack, &m->pack_cap, m->packs + 1, sizeof *m->pack));
    m->pack[m->packs++] = *p;
    return FM_OK;
}

fm_status fmr_manifest_add_git(fmr_manifest *m, const fm_digest *name, uint64_t bytes,
                               const fm_oid *tip, size_t tips)
{
    for (size_t i = 0; i < m->gits; i++)
        if (fm_digest_eq(&m->git[i].name, name))
            return FM_OK;
    FM_TRY(fm_grow(&m->git, &m->git_cap, m->gits + 1, sizeof *m->git));
    struct fmr_bucket_git *g = &m->git[m->gits];
    *g = (struct fmr_bucket_git){*name, bytes, fm_calloc(tips + 1, sizeof *tip), tips};
    if (!g->tip)
        return FM_ENOMEM;
    memcpy(g->tip, tip, tips * sizeof *tip);
    m->gits++;
    return FM_OK;
}

/* ---- reading ---- */

static fm_status bad(const char *what, const char *list, size_t i, const char *field)
{
    return fm_fail(FM_ECORRUPT, "%s: \"%s\", item %zu: its \"%s\" is none", what, list, i, field);
}

static bool take_digest(const fm_json *v, const char *key, fm_digest *out)
{
    const fm_span hex = fm_json_str(fm_json_get(v, key));
    return hex.data && fm_digest_parse(out, (const char *)hex.data, hex.len);
}

static bool take_bytes(const fm_json *v, const char *key, uint64_t *out)
{
    const int64_t n = fm_json_int(fm_json_get(v, key), -1);
    *out = n > 0 ? (uint64_t)n : 0;
    return n > 0;
}

static fm_status read_named_refs(fmr_manifest *m, const fm_json *list, const char *what,
                                 fm_map *names)
{
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *v = fm_json_at(list, i);
        const fm_span name = fm_json_str(fm_json_get(v, "name"));
        fm_oid oid, peeled = no_oid;
        FM_TRY(fm_go_on());
        if (!name.data || name.len == 0 || name.len > FMR_REF_NAME_MAX ||
            memchr(name.data, 0, name.len) || fm_map_has(names, name.data, name.len))
            return bad(what, "refs", i, "name");
        FM_TRY(fm_map_put(names, name.data, name.len, names, NULL));
        if (!fmr_oid_parse(&oid, fm_json_str(fm_json_get(v, "oid"))) || fm_oid_eq(&oid, &no_oid))
            return bad(what, "refs", i, "oid");
        if (fm_json_get(v, "commit") &&
            !fmr_oid_parse(&peeled, fm_json_str(fm_json_get(v, "commit"))))
            return bad(what, "refs", i, "commit");
        FM_TRY(add_ref(m, (const char *)name.data, &oid, &peeled));
    }
    return FM_OK;
}

static fm_status read_refs(fmr_manifest *m, const fm_json *list, const char *what)
{
    fm_map *names = NULL;
    fm_status rc = fm_map_new(&names);
    FM_THEN(rc, read_named_refs(m, list, what, names));
    fm_map_free(names);
    return rc;
}

static fm_status read_packs(fmr_manifest *m, const fm_json *list, const char *what)
{
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *v = fm_json_at(list, i);
        struct fmr_bucket_pack p = {.gone = false};
        if (!take_digest(v, "sha256", &p.name))
            return bad(what, "packs", i, "sha256");
        if (!take_bytes(v, "bytes", &p.bytes))
            return bad(what, "packs", i, "bytes");
        if (!take_digest(v, "heads_sha256", &p.heads))
            return bad(what, "packs", i, "heads_sha256");
        if (!take_bytes(v, "heads_bytes", &p.heads_bytes) || p.heads_bytes > FMR_HEADS_MAX ||
            p.heads_bytes > p.bytes)
            return bad(what, "packs", i, "heads_bytes");
        FM_TRY(fm_grow(&m->pack, &m->pack_cap, m->packs + 1, sizeof *m->pack));
        m->pack[m->packs++] = p;
    }
    return FM_OK;
}

static fm_status read_tips(struct fmr_bucket_git *g, const fm_json *list, const char *what,
                           size_t at)
{
    g->tips = 0;
    g->tip = fm_calloc(fm_json_count(list) + 1, sizeof *g->tip);
    if (!g->tip)
        return FM_ENOMEM;
    for (; g->tips < fm_json_count(list); g->tips++)
        if (!fmr_oid_parse(&g->tip[g->tips], fm_json_str(fm_json_at(list, g->tips))))
            return bad(what, "lineage", at, "tips");
    return g->tips ? FM_OK : bad(what, "lineage", at, "tips");
}

static fm_status read_git(fmr_manifest *m, const fm_json *list, const char *what)
{
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *v = fm_json_at(list, i);
        FM_TRY(fm_grow(&m->git, &m->git_cap, m->gits + 1, sizeof *m->git));
        struct fmr_bucket_git *g = &m->git[m->gits];
        memset(g, 0, sizeof *g);
        if (!take_digest(v, "sha256", &g->name))
            return bad(what, "lineage", i, "sha256");
        if (!take_bytes(v, "bytes", &g->bytes) || g->bytes > FMR_GIT_PACK_MAX)
            return bad(what, "lineage", i, "bytes");
        m->gits++; /* its tips are released from here on */
        FM_TRY(read_tips(g, fm_json_get(v, "tips"), what, i));
    }
    return FM_OK;
}

static fm_status read_all(fmr_manifest *m, const fm_json *v, const char *what)
{
    const int64_t version = fm_json_int(fm_json_get(v, "fmstore_bucket"), 0);
    if (version < 1)
        return fm_fail(FM_ECORRUPT, "%s: is not the list of a bucket of fmstore", what);
    if (version > FMR_MANIFEST_VERSION)
        return fm_fail(FM_EVERSION, "%s: is of version %lld; this fmstore knows %d", what,
                       (long long)version, FMR_MANIFEST_VERSION);
    FM_TRY(read_refs(m, fm_json_get(v, "refs"), what));
    FM_TRY(read_packs(m, fm_json_get(v, "packs"), what));
    return read_git(m, fm_json_get(v, "lineage"), what);
}

fm_status fmr_manifest_parse(fmr_manifest *out, fm_span text, const char *what)
{
    fm_json *v = NULL;
    memset(out, 0, sizeof *out);
    fm_status rc = fm_json_parse(&v, text, what);
    FM_THEN(rc, read_all(out, v, what));
    fm_json_free(v);
    if (rc != FM_OK)
        fmr_manifest_release(out);
    return rc;
}

/* ---- writing ---- */

static void put_digest(fm_status *rc, fm_json *v, const char *key, const fm_digest *d)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(d, hex);
    fm_json_put(rc, v, key, fm_json_new_str(hex));
}

static void put_bytes(fm_status *rc, fm_json *v, const char *key, uint64_t n)
{
    fm_json_put(rc, v, key, fm_json_new_int((int64_t)n));
}

static fm_json *oid_text(const fm_oid *oid)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    return fm_json_new_str(hex);
}

static fm_json *refs_of(const fmr_manifest *m, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < m->refs; i++) {
        fm_json *v = fm_json_new_object();
        fm_json_put(rc, v, "name", fm_json_new_str(m->ref[i].name));
        fm_json_put(rc, v, "oid", oid_text(&m->ref[i].oid));
        if (!fm_oid_eq(&m->ref[i].peeled, &no_oid))
            fm_json_put(rc, v, "commit", oid_text(&m->ref[i].peeled));
        fm_json_push_to(rc, list, v);
    }
    return list;
}

static fm_json *packs_of(const fmr_manifest *m, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < m->packs; i++) {
        const struct fmr_bucket_pack *p = &m->pack[i];
        if (p->gone)
            continue;
        fm_json *v = fm_json_new_object();
        put_digest(rc, v, "sha256", &p->name);
        put_bytes(rc, v, "bytes", p->bytes);
        put_digest(rc, v, "heads_sha256", &p->heads);
        put_bytes(rc, v, "heads_bytes", p->heads_bytes);
        fm_json_push_to(rc, list, v);
    }
    return list;
}

static fm_json *git_of(const fmr_manifest *m, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < m->gits; i++) {
        const struct fmr_bucket_git *g = &m->git[i];
        fm_json *v = fm_json_new_object(), *tips = fm_json_new_array();
        put_digest(rc, v, "sha256", &g->name);
        put_bytes(rc, v, "bytes", g->bytes);
        for (size_t k = 0; k < g->tips; k++)
            fm_json_push_to(rc, tips, oid_text(&g->tip[k]));
        fm_json_put(rc, v, "tips", tips);
        fm_json_push_to(rc, list, v);
    }
    return list;
}

fm_status fmr_manifest_write(const fmr_manifest *m, fm_buf *out)
{
    fm_status rc = FM_OK;
    fm_json *v = fm_json_new_object();
    fm_json_put(&rc, v, "fmstore_bucket", fm_json_new_int(FMR_MANIFEST_VERSION));
    fm_json_put(&rc, v, "refs", refs_of(m, &rc));
    fm_json_put(&rc, v, "packs", packs_of(m, &rc));
    fm_json_put(&rc, v, "lineage", git_of(m, &rc));
    FM_THEN(rc, fm_json_write(out, v, FM_JSON_PRETTY));
    fm_buf_char(out, '\n');
    fm_json_free(v);
    FM_THEN(rc, fm_buf_ok(out));
    return rc;
}
