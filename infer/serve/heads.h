/* heads.h - checks of a request's headers: the host that was meant, the web page that sent the
 * request, and the length of the body. */
#ifndef FM_INFER_SERVE_HEADS_H
#define FM_INFER_SERVE_HEADS_H

#include "infer/serve/mhd.h"
#include "store/base/fm.h"

FM_BEGIN_DECLS

/* host ("name", "name:port", "[v6]:port") is this machine's loopback, or name (NULL: none). */
bool fmi_host_local(const char *host, const char *name);
/* The request comes from no web page, or from a page of this server or of a server on the browser's
 * own machine. Any page may send a POST of text anywhere; browsers name its server in Origin. */
bool fmi_origin_fits(struct MHD_Connection *conn);
/* At most one Host and one length: of two, or of a length and chunks, one reader believes the first
 * and another the last (RFC 9112, sections 3.2 and 6.3). */
bool fmi_framing_fits(struct MHD_Connection *conn);

FM_END_DECLS
#endif
