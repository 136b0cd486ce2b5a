/* serve_sites.c - the addresses of fmstore serve that remote/ answers. */
#include "cli/cmd/serve_sites.h"

#include <stdio.h>
#include <string.h>

#define HUB_REQUESTS 32u /* at the same time: a client downloads eight files at once */

static fm_status read_body(void *ctx, void *dst, size_t cap, size_t *got)
{
    return fm_site_read(ctx, dst, cap, got);
}

static fm_status write_answer(void *ctx, const void *data, size_t len)
{
    return fm_site_write(ctx, data, len);
}

/* ---- a remote ---- */

static fm_status begin_remote(void *ctx, unsigned status, const char *session)
{
    FM_TRY(fm_site_set(ctx, "Content-Type", FM_REMOTE_WIRE_TYPE));
    FM_TRY(fm_site_set(ctx, "Cache-Control", "no-store"));
    FM_TRY(fm_site_set(ctx, "X-Accel-Buffering", "no"));
    if (session)
        FM_TRY(fm_site_set(ctx, FM_REMOTE_SESSION, session));
    return fm_site_begin(ctx, status, status == 204 ? 0 : FM_SITE_UNKNOWN);
}

static fm_status answer_remote(void *web, fm_site_call *call)
{
    if (*fm_site_path(call))
        return fm_fail(FM_ENOTFOUND, "there is nothing below " FM_REMOTE_WIRE_PATH);
    const fm_remote_exchange x = {.session = fm_site_header(call, FM_REMOTE_SESSION),
                                  .ends = strcmp(fm_site_method(call), "DELETE") == 0,
                                  .ctx = call,
                                  .read = read_body,
                                  .begin = begin_remote,
                                  .write = write_answer};
    return fm_remote_web_answer(web, &x);
}

/* ---- a Hub ---- */

static const char *header(void *ctx, const char *name)
{
    return fm_site_header(ctx, name);
}

static const char *argument(void *ctx, const char *name)
{
    return fm_site_argument(ctx, name);
}

static fm_status set_header(void *ctx, const char *name, const char *value)
{
    return fm_site_set(ctx, name, value);
}

static fm_status begin_hub(void *ctx, unsigned status, uint64_t bytes)
{
    return fm_site_begin(ctx, status, bytes);
}

static fm_status answer_hub(void *web, fm_site_call *call)
{
    const fm_hub_exchange x = {.method = fm_site_method(call),
                               .path = fm_site_path(call),
                               .ctx = call,
                               .header = header,
                               .argument = argument,
                               .read = read_body,
                               .set = set_header,
                               .begin = begin_hub,
                               .write = write_answer};
    return fm_hub_web_answer(web, &x);
}

/* ---- both ---- */

fm_status serve_sites_open(serve_sites *s, const char *dir)
{
    size_t n = 0;
    s->remote = s->remote || s->remote_write;
    if (s->hub) {
        FM_TRY(fm_hub_web_new(&s->hub_web, dir));
        s->site[n++] = (fm_server_site){.prefix = "/",
                                        .methods = "GET, HEAD, POST",
                                        .most = HUB_REQUESTS,
                                        .ctx = s->hub_web,
                                        .answer = answer_hub,
                                        .takes = fm_hub_web_takes};
    }
    if (s->remote) {
        FM_TRY(fm_remote_web_new(&s->remote_web, dir, s->remote_write));
        s->site[n++] = (fm_server_site){.prefix = FM_REMOTE_WIRE_PATH,
                                        .methods = "POST, DELETE",
                                        .writes = s->remote_write,
                                        .ctx = s->remote_web,
                                        .answer = answer_remote};
    }
    return FM_OK;
}

void serve_sites_close(serve_sites *s)
{
    fm_remote_web_free(s->remote_web);
    fm_hub_web_free(s->hub_web);
}

void serve_sites_announce(const serve_sites *s)
{
    if (s->remote)
        printf("a remote at that URL, to %s\n",
               s->remote_write ? "fetch from and push to" : "fetch from");
    if (s->hub)
        printf(
            "a Hub at that URL: HF_ENDPOINT for Hugging Face's clients, models fmstore/{name}\n");
}
