/* client.h - the far side as another fmstore at the end of a stream. */
#ifndef FM_REMOTE_WIRE_CLIENT_H
#define FM_REMOTE_WIRE_CLIENT_H

#include "remote/wire/far.h"
#include "remote/wire/peer.h"

FM_BEGIN_DECLS

/* Greets the other side. close (may be NULL) is called with stream->ctx at the far side's close,
 * and here if the greeting fails. peer: its name in errors; copied. FM_EVERSION: a newer protocol.
 * FM_EREFUSED: it does not let this client write. */
FM_CHECKED fm_status fmr_client_new(fmr_far **out, const fmr_stream *stream,
                                    void (*close)(void *ctx), const char *peer,
                                    fmr_service service);

/* The peer that answers is in this process: records go without messages (fmr_peer_get). */
void fmr_client_beside(fmr_far *f, fmr_peer *here);

FM_END_DECLS
#endif
