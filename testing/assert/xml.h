/* xml.h - is a text XML, or does an element begin in it? The only door to expat. */
#ifndef FM_TESTING_XML_H
#define FM_TESTING_XML_H

#include "store/base/text/json.h"

#define FMV_TAGS_DEEP_MAX 256
#define FMV_XML_PATHS_MAX 16u

/* What was found, and where the reading broke off or was done. */
typedef struct fmv_tags {
    bool holds;
    const char *why;                /* not */
    size_t at;                      /* in the text */
    size_t end;                     /* of what was looked at, for the bounds of a search */
    size_t open[FMV_TAGS_DEEP_MAX]; /* where the elements around that place begin */
    size_t depth;
} fmv_tags;

/* Well-formed without a document type, so that no entity is ever expanded. whole: the text is a
 * document; else one whole element begins at `at`. paths: elements like "root.child" that must be
 * there. */
fm_status fmv_xml_read(fm_span s, size_t at, bool whole, const fm_json *paths, fmv_tags *out);

#endif
