/* ctest: card cuda_cost=10 */
/* engine.c - the engine and training on a GPU, emulated or real: the CPU's bits (model/apart.c). */
#define FM_ON_CARD
#include "tests/model/apart.c"
