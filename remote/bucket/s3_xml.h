/* s3_xml.h - the little of XML that S3 answers with: elements without attributes that matter, whose
 * text is a name or a number. Pure: a fuzzer can call it. */
#ifndef FM_REMOTE_BUCKET_S3_XML_H
#define FM_REMOTE_BUCKET_S3_XML_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

/* What stands between the next <name> and its end in *text, which moves behind it; data NULL: there
 * is none. Elements of one name do not lie in one another there. */
fm_span fmr_xml_next(fm_span *text, const char *name);
fm_span fmr_xml_first(fm_span text, const char *name);
/* Appends the text with the five entities, and numeric ones below 128, replaced. */
void fmr_xml_text(fm_buf *out, fm_span text);
bool fmr_xml_number(fm_span text, uint64_t *out);

FM_END_DECLS
#endif
