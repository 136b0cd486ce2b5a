/* torch_legacy.h - the layout of torch.save before PyTorch 1.6 (and of
 * _use_new_zipfile_serialization=False): five pickles (a magic number, a protocol number, the
 * machine's sizes, the value, the list of storages' keys), then each storage as its count of
 * elements and its bytes. Inside store only. */
#ifndef FM_STORE_TORCH_LEGACY_H
#define FM_STORE_TORCH_LEGACY_H

#include "store/base/map.h"
#include "store/formats/torch.h"
#include "store/formats/torch_pickle.h"

FM_BEGIN_DECLS

typedef struct fm_torch_place { /* a storage's bytes; `at`: offset in the file */
    uint64_t at, bytes;
} fm_torch_place;

/* *root is the value; fills places: key -> fm_torch_place (in the arena). FM_ECORRUPT,
 * FM_EUNSUPPORTED, FM_ELIMIT as for tp_load. */
FM_CHECKED fm_status fm_torch_legacy(tp_value **root, fm_map *places, fm_arena *arena, fm_span file,
                                     const char *what);

FM_END_DECLS
#endif
