/* message.h - the operations of the wire and their fields, as bytes. Pure: a fuzzer can call it.
 *
 * | operation | asks with                  | is answered with                                    |
 * |-----------|----------------------------|-----------------------------------------------------|
 * | HELLO     | version u32, service u8    | END: version u32, may_write u8, partial u8          |
 * | REFS      |                            | LIST of refs, END                                   |
 * | GIT_GET   | LIST of wants, LIST of haves (20 each; an empty LIST ends the wants), END | DATA:
 * a git | |           |                            | pack; END: objects u64                       
 *       | | INFO      | LIST of ids (32), END      | LIST of infos, in the order of the ids; END  
 *       | | GET       | LIST of (id, head, offset u64), END | for each RECORD: there u8; DATA;
 * then END  | | HAS       | LIST of ids, END           | LIST: there u8 each; END                 
 *           | | CUT       | END                        | END: there u8, id, head, bytes u64       
 *           | | PUT       | for each RECORD: info, offset u64; DATA; then END | END: objects u64,
 * bytes u64  | | GIT_PUT   | DATA: a git pack; END      | END: objects u64                        
 *            | | MOVE      | LIST of wishes, END        | LIST of outcomes, END                   
 *            |
 *
 * A name or text is its length u16 and its bytes. HAS, CUT, PUT, GIT_PUT and MOVE want a service
 * that may write. What HAS finds stays until the connection ends: the far side holds a lease. */
#ifndef FM_REMOTE_WIRE_MESSAGE_H
#define FM_REMOTE_WIRE_MESSAGE_H

#include "lineage/exchange.h"
#include "store/exchange.h"

FM_BEGIN_DECLS

#define FMR_WIRE_VERSION 1u
#define FMR_LIST_MAX ((size_t)1 << 22) /* items of a message */
#define FMR_ASK_IDS 4096u              /* ids or records of one message INFO, GET or HAS */

typedef enum fmr_op {
    FMR_HELLO = 1,
    FMR_REFS,
    FMR_GIT_GET,
    FMR_INFO,
    FMR_GET,
    FMR_HAS,
    FMR_CUT,
    FMR_PUT,
    FMR_GIT_PUT,
    FMR_MOVE,
} fmr_op;
typedef enum fmr_service { FMR_READ, FMR_WRITE } fmr_service;

typedef struct fmr_ask_record { /* an item of GET */
    fm_digest id, head;
    uint64_t offset;
} fmr_ask_record;
#define FMR_ASK_RECORD_BYTES 72u

void fmr_put_text(fm_buf *b, const char *text); /* cut at 65,535 bytes */
/* Copies into out, which has `cap` bytes; what does not fit, or holds a NUL, fails the cursor. */
void fmr_take_text(fm_cursor *c, char *out, size_t cap);
void fmr_put_digest(fm_buf *b, const fm_digest *d);
void fmr_take_digest(fm_cursor *c, fm_digest *out);
void fmr_put_oid(fm_buf *b, const fm_oid *oid);
void fmr_take_oid(fm_cursor *c, fm_oid *out);

/* there false: only that is written. */
void fmr_put_info(fm_buf *b, bool there, const fm_record_info *info);
/* FM_ECORRUPT: no record can be so. */
FM_CHECKED fm_status fmr_take_info(fm_cursor *c, bool *there, fm_record_info *out);
void fmr_put_wish(fm_buf *b, const fm_ref_wish *w);
/* name: room for the name, which the wish borrows. */
#define FMR_NAME_MAX 256u
FM_CHECKED fm_status fmr_take_wish(fm_cursor *c, fm_ref_wish *out, char name[FMR_NAME_MAX]);
void fmr_put_outcome(fm_buf *b, const fm_ref_wish *w);
FM_CHECKED fm_status fmr_take_outcome(fm_cursor *c, fm_ref_wish *w);

FM_END_DECLS
#endif
