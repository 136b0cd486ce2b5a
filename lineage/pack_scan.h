/* pack_scan.h - looks at a git pack that comes from outside before libgit2 does: sizes, counts and
 * places are within limits, so that no object costs more memory than it may (gitformat-pack(5)).
 * Every object is unpacked on the way, through a buffer of fixed size; nothing is kept of it. */
#ifndef FM_LINEAGE_PACK_SCAN_H
#define FM_LINEAGE_PACK_SCAN_H

#include "lineage/internal.h"

#define FML_PACK_MAX_OBJECTS (1u << 22)
#define FML_PACK_MAX_OBJECT_BYTES FML_MAX_RESULT_BYTES /* the largest file that lineage writes */
#define FML_PACK_UNPACKED_TIMES 16u /* all objects may unpack to so much more than the pack */

#define FML_PACK_MAX_CHAIN 4095u /* deltas on deltas; git makes no longer ones either */
/* libgit2 walks a chain for each of its deltas, and again at each of its passes over the pack. All
 * deltas' ways to the end of their chain, by places: so many steps an object, and SLACK. git's own
 * chains have at most 250 deltas where it is asked for small packs. */
#define FML_PACK_MEAN_CHAIN 128u
#define FML_PACK_CHAIN_SLACK ((uint64_t)1 << 24)

typedef struct fml_pack_scan fml_pack_scan;
FM_CHECKED fm_status fml_pack_scan_new(fml_pack_scan **out, uint64_t max_bytes);
void fml_pack_scan_free(fml_pack_scan *s); /* NULL is fine */
/* The bytes go on where the last ones ended. FM_ECORRUPT, FM_ELIMIT: nothing of them may be
 * used. */
FM_CHECKED fm_status fml_pack_scan_bytes(fml_pack_scan *s, fm_span bytes);
/* FM_ECORRUPT: the pack is not whole. Its checksum is compared only where it has no objects:
 * libgit2 does it otherwise. */
FM_CHECKED fm_status fml_pack_scan_end(const fml_pack_scan *s, uint32_t *objects);
/* FM_ELIMIT: a chain of deltas is too long: each reading of its end would unpack all of it. idx:
 * the index that libgit2 made of the pack. */
FM_CHECKED fm_status fml_pack_scan_chains(const fml_pack_scan *s, fm_span idx);

#endif
