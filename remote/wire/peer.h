/* peer.h - the side that answers: one repository, asked over a stream (message.h). */
#ifndef FM_REMOTE_WIRE_PEER_H
#define FM_REMOTE_WIRE_PEER_H

#include "remote/wire/far.h"
#include "remote/wire/frame.h"

FM_BEGIN_DECLS

typedef struct fmr_peer fmr_peer;
/* Takes a lease on the repository: a writer's where it may be written, which lasts until r is
 * closed; r is used by the peer alone until then. */
FM_CHECKED fm_status fmr_peer_new(fmr_peer **out, fm_repo *r, fmr_service service);
void fmr_peer_free(fmr_peer *p); /* NULL is fine; r stays open */
/* Reads one message and answers it. One that fails is answered by FMR_FAIL, and the failure is
 * returned: as the message may not have been read to its end, the connection ends with it. *more
 * false: the stream ended between two messages. */
FM_CHECKED fm_status fmr_peer_answer(fmr_peer *p, fmr_wire *w, bool *more);
/* Answers until the stream ends. */
FM_CHECKED fm_status fmr_peer_run(fmr_peer *p, const fmr_stream *stream);

/* A client in the same process, while the peer waits for a message, gets and puts records without
 * one: nothing is copied on the way. As the operations of fmr_far; *bytes: of records, so far. */
FM_CHECKED fm_status fmr_peer_get(fmr_peer *p, const fmr_ask_record *ask, size_t count,
                                  const fmr_sink *to, uint64_t *bytes);
FM_CHECKED fm_status fmr_peer_put(fmr_peer *p, const fmr_load *load, uint64_t *bytes);

FM_END_DECLS
#endif
