/* answers.c - reads what git prints. */
#include "remote/githost/answers.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

#define HEX 40u
#define NAME_MAX_BYTES 255u
#define PEEL "^{}"

/* The text up to the next line break, which *text moves behind. */
static fm_span next_line(fm_span *text)
{
    const uint8_t *end = memchr(text->data, '\n', text->len);
    const size_t n = end ? (size_t)(end - text->data) : text->len, used = end ? n + 1 : n;
    const fm_span line = fm_span_of(text->data, n);
    *text = fm_span_of(text->data + used, text->len - used);
    return line;
}

/* ---- ls-remote ---- */

static bool parse_oid(fm_oid *out, const char *hex, size_t len)
{
    if (len != HEX)
        return false;
    for (size_t i = 0; i < HEX; i++) {
        const char c = hex[i];
        const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (d < 0)
            return false;
        out->b[i / 2] = (uint8_t)(i % 2 ? out->b[i / 2] | d : d << 4);
    }
    return true;
}

static fm_status add_kept(fmr_host_refs *r, const char *name, const fm_oid *oid)
{
    fm_oid named;
    const char *hex = name + strlen(FMR_KEPT);
    if (!parse_oid(&named, hex, strlen(hex)) || !fm_oid_eq(&named, oid))
        return FM_OK; /* not one of ours */
    FM_TRY(fm_grow(&r->kept, &r->kept_cap, r->kept_count + 1, sizeof *r->kept));
    r->kept[r->kept_count++] = *oid;
    return FM_OK;
}

static fm_status add_ref(fmr_host_refs *r, const char *name, const fm_oid *oid)
{
    FM_TRY(fm_grow(&r->ref, &r->ref_cap, r->count + 1, sizeof *r->ref));
    struct fmr_host_ref *ref = &r->ref[r->count];
    *ref = (struct fmr_host_ref){.name = fm_strdup(name), .oid = *oid};
    r->count += ref->name != NULL;
    return ref->name ? FM_OK : FM_ENOMEM;
}

static fm_status take_line(fmr_host_refs *r, fm_span line, const char *what)
{
    char name[NAME_MAX_BYTES + sizeof PEEL];
    const char *text = (const char *)line.data;
    const char *tab = memchr(text, '\t', line.len);
    const size_t hex = tab ? (size_t)(tab - text) : 0, n = tab ? line.len - hex - 1 : 0;
    fm_oid oid;
    if (hex == 64)
        return fm_fail(FM_EUNSUPPORTED, "%s: is a git repository of SHA-256; a lineage has SHA-1",
                       what);
    if (!parse_oid(&oid, text, hex))
        return fm_fail(FM_ECORRUPT, "%s: git lists its refs in a form that is not known", what);
    if (n == 0 || n >= sizeof name || memchr(tab + 1, '\0', n)) /* longer ones do not travel */
        return FM_OK;
    memcpy(name, tab + 1, n);
    name[n] = '\0';
    const size_t peel = sizeof PEEL - 1;
    if (n > peel && strcmp(name + n - peel, PEEL) == 0) {
        name[n - peel] = '\0';
        if (r->count && strcmp(r->ref[r->count - 1].name, name) == 0)
            r->ref[r->count - 1].peeled = oid;
        return FM_OK;
    }
    if (r->count + r->kept_count == FMR_HOST_REFS_MAX)
        return fm_fail(FM_ELIMIT, "%s: has more than %u branches and tags", what,
                       FMR_HOST_REFS_MAX);
    if (strncmp(name, FMR_KEPT, strlen(FMR_KEPT)) == 0)
        return add_kept(r, name, &oid);
    return n <= NAME_MAX_BYTES && fm_exchange_ref_travels(name) ? add_ref(r, name, &oid) : FM_OK;
}

fm_status fmr_host_refs_parse(fmr_host_refs *out, fm_span text, const char *what)
{
    fm_status rc = FM_OK;
    memset(out, 0, sizeof *out);
    while (rc == FM_OK && text.len > 0)
        rc = take_line(out, next_line(&text), what);
    if (rc != FM_OK)
        fmr_host_refs_release(out);
    return rc;
}

void fmr_host_refs_release(fmr_host_refs *refs)
{
    for (size_t i = 0; i < refs->count; i++)
        fm_free(refs->ref[i].name);
    fm_free(refs->ref);
    fm_free(refs->kept);
    memset(refs, 0, sizeof *refs);
}

const struct fmr_host_ref *fmr_host_refs_find(const fmr_host_refs *refs, const char *name)
{
    for (size_t i = 0; i < refs->count; i++)
        if (strcmp(refs->ref[i].name, name) == 0)
            return &refs->ref[i];
    return NULL;
}

/* ---- push ---- */

/* "<flag>\t<from>:<to>\t[<what>] (<why>)" */
static void take_outcome(fm_span line, fmr_pushed_fn fn, void *ctx)
{
    char name[NAME_MAX_BYTES + 1], why[256];
    const char *text = (const char *)line.data, *end = text + line.len;
    if (line.len < 4 || text[1] != '\t' || !text[0] || !strchr(" +-*=!", text[0]))
        return;
    const char *tab = memchr(text + 2, '\t', line.len - 2);
    const char *to = tab ? memchr(text + 2, ':', (size_t)(tab - text) - 2) : NULL;
    if (!to || (size_t)(tab - to) - 1 > NAME_MAX_BYTES)
        return;
    (void)snprintf(name, sizeof name, "%.*s", (int)(tab - to - 1), to + 1);
    const bool moved = text[0] != '!';
    const char *open = memchr(tab, '(', (size_t)(end - tab));
    const char *from = open ? open + 1 : tab + 1;
    size_t n = FM_MIN((size_t)(end - from), sizeof why - 1);
    n -= open && n > 0 && from[n - 1] == ')';
    memcpy(why, from, moved ? 0 : n);
    why[moved ? 0 : n] = '\0';
    for (char *p = why; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = ' ';
    fn(ctx, name, moved, why);
}

void fmr_push_report(fm_span text, fmr_pushed_fn fn, void *ctx)
{
    while (text.len > 0)
        take_outcome(next_line(&text), fn, ctx);
}
