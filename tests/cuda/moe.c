/* ctest: card cuda_cost=10 */
/* moe.c - models with experts on a GPU, emulated or real: the CPU's answers, from steps that the
 * GPU keeps (model/apart_experts.c). */
#define FM_ON_CARD
#include "tests/model/apart_experts.c"
