/* tiles.h - register tiles: how rows are split over them, and one instance for each number of rows.
 *
 * A tile's sums live in registers because its number of rows is a constant of its function. So each
 * tile is written once, inlined, and instantiated here for 1 to as many rows as fit. */
#ifndef FM_INFER_CPU_TILES_H
#define FM_INFER_CPU_TILES_H

#include "infer/cpu/kern/vec.h"

/* Number of tiles for m rows, and rows of tile number t: 13 = 7 + 6. */
FMI_INLINE uint32_t tile_count(uint32_t m, uint32_t most)
{
    return (m + most - 1) / most;
}
FMI_INLINE uint32_t tile_rows_at(uint32_t m, uint32_t t, uint32_t tiles)
{
    return m / tiles + (t < m % tiles ? 1u : 0u);
}

/* Calls F(m, ...) for every m from 1 to n; n is 2, 3, 4, 6, 8 or 12, without a suffix. */
#define FMI_TILES(n, F, ...) FMI_TILES_(n, F, __VA_ARGS__)
#define FMI_TILES_(n, F, ...) FMI_TILES_##n(F, __VA_ARGS__)
#define FMI_TILES_2(F, ...) F(1, __VA_ARGS__) F(2, __VA_ARGS__)
#define FMI_TILES_3(F, ...) FMI_TILES_2(F, __VA_ARGS__) F(3, __VA_ARGS__)
#define FMI_TILES_4(F, ...) FMI_TILES_3(F, __VA_ARGS__) F(4, __VA_ARGS__)
#define FMI_TILES_6(F, ...) FMI_TILES_4(F, __VA_ARGS__) F(5, __VA_ARGS__) F(6, __VA_ARGS__)
#define FMI_TILES_8(F, ...) FMI_TILES_6(F, __VA_ARGS__) F(7, __VA_ARGS__) F(8, __VA_ARGS__)
#define FMI_TILES_12(F, ...)                                                                       \
    FMI_TILES_8(F, __VA_ARGS__)                                                                    \
    F(9, __VA_ARGS__) F(10, __VA_ARGS__) F(11, __VA_ARGS__) F(12, __VA_ARGS__)

/* Defines the table name[n + 1]: name[m] is a function of params that calls tile(m, ...). */
#define FMI_TILE_TABLE(n, name, params, tile, ...)                                                 \
    FMI_TILES(n, FMI_TILE_INSTANCE, name, params, tile, __VA_ARGS__)                               \
    static void(*const name[n + 1]) params = {NULL, FMI_TILES(n, FMI_TILE_NAME, name)}
#define FMI_TILE_INSTANCE(m, name, params, tile, ...)                                              \
    static void name##_##m params                                                                  \
    {                                                                                              \
        tile(m, __VA_ARGS__);                                                                      \
    }
#define FMI_TILE_NAME(m, name) name##_##m,

#endif
