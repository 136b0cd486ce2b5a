/* heads.c - see heads.h. Pure functions of the head of one request. */
#include "infer/serve/heads.h"

#include <string.h>
#include <strings.h>

static bool is_port(const char *s)
{
    return s[0] == '\0' || (s[0] == ':' && s[1 + strspn(s + 1, "0123456789")] == '\0');
}

bool fmi_host_local(const char *host, const char *name)
{
    const char *const local[] = {"localhost", "127.0.0.1", "[::1]", name};
    for (size_t i = 0; i < FM_ARRAY_LEN(local); i++) {
        size_t n = local[i] ? strlen(local[i]) : 0;
        if (n && strncasecmp(host, local[i], n) == 0 && is_port(host + n))
            return true;
    }
    return false;
}

static const char *value_of(struct MHD_Connection *conn, const char *name)
{
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, name);
}

bool fmi_origin_fits(struct MHD_Connection *conn)
{
    const char *origin = value_of(conn, "Origin"), *host = value_of(conn, "Host");
    const char *site = value_of(conn, "Sec-Fetch-Site");
    if (!origin)
        return !site || strcasecmp(site, "cross-site") != 0;
    if (strncasecmp(origin, "http://", 7) == 0)
        origin += 7;
    else if (strncasecmp(origin, "https://", 8) == 0)
        origin += 8;
    else
        return false;
    return (host && strcasecmp(origin, host) == 0) || fmi_host_local(origin, NULL);
}

typedef struct framing {
    unsigned hosts, lengths;
    bool coded; /* in another way than by chunks: the body's end is unknown */
} framing;

static enum MHD_Result count(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    framing *f = cls;
    (void)kind;
    f->hosts += strcasecmp(key, "Host") == 0;
    f->lengths += strcasecmp(key, "Content-Length") == 0;
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->lengths++;
        f->coded = f->coded || !value || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

bool fmi_framing_fits(struct MHD_Connection *conn)
{
    framing f = {0};
    (void)MHD_get_connection_values(conn, MHD_HEADER_KIND, count, &f);
    return f.hosts < 2 && f.lengths < 2 && !f.coded;
}
