/* map.h - hash map from byte strings to pointers. Keys are copied; values are borrowed. Iteration
 * is in insertion order, so that nothing printed depends on a hash. No user needs removal, so there
 * is none. Keys come from files, so the hash is seeded per map. */
#ifndef FM_BASE_MAP_H
#define FM_BASE_MAP_H

#include "store/base/cursor.h"

FM_BEGIN_DECLS

typedef struct fm_map fm_map;
FM_CHECKED fm_status fm_map_new(fm_map **out);
void fm_map_free(fm_map *m);
/* Sets *old to the value that was there (NULL if none); old may be NULL. */
FM_CHECKED fm_status fm_map_put(fm_map *m, const void *key, size_t key_len, void *value,
                                void **old);
void *fm_map_get(const fm_map *m, const void *key, size_t key_len); /* NULL = absent */
bool fm_map_has(const fm_map *m, const void *key, size_t key_len);
size_t fm_map_count(const fm_map *m);
/* i in [0, count), insertion order. */
fm_span fm_map_key_at(const fm_map *m, size_t i);
void *fm_map_value_at(const fm_map *m, size_t i);

FM_END_DECLS
#endif
