/* xml.h - whether a text is XML, or an element begins in it. Only xml.c uses expat. */
#ifndef FM_TESTING_XML_H
#define FM_TESTING_XML_H

#include "store/base/text/json.h"

#define FMV_TAGS_DEEP_MAX 256
#define FMV_XML_PATHS_MAX 16u

/* The result, and where the reading stopped. */
typedef struct fmv_tags {
    bool holds;
    const char *why;                /* why it does not hold */
    size_t at;                      /* offset in the text */
    size_t end;                     /* of the bytes that were read, for a search with a bound */
    size_t open[FMV_TAGS_DEEP_MAX]; /* where the elements around `at` begin */
    size_t depth;
} fmv_tags;

/* Checks that the text is well-formed, without a document type, so that no entity is ever expanded.
 * whole: the text is a document; else one whole element begins at `at`. paths: elements like
 * "root.child" that must exist. */
fm_status fmv_xml_read(fm_span s, size_t at, bool whole, const fm_json *paths, fmv_tags *out);

#endif
