/* train.c - the kernels of training's products, compiled once per instruction set (FMI_ISA_*);
 * see kern.c for why. */
#include "infer/cpu/kern/train.h"
#include "infer/cpu/kern/tiles.h"
#include "infer/cpu/kern/vec.h"

#include "infer/cpu/kern/terms.h"
#include "infer/cpu/kern/bf16.h"

#if defined(FMI_ISA_AVX512)
#define FMI_TABLE fmi_train_kern_avx512
#define FMI_ISA "avx512"
#elif defined(FMI_ISA_AVX2)
#define FMI_TABLE fmi_train_kern_avx2
#define FMI_ISA "avx2"
#elif defined(FMI_ISA_NEON)
#define FMI_TABLE fmi_train_kern_neon
#define FMI_ISA "neon"
#else
#define FMI_TABLE fmi_train_kern_generic
#define FMI_ISA "generic"
#endif

const fmi_train_kern FMI_TABLE = {
    .isa = FMI_ISA, .thin = k_thin, .round = k_round, .pairs = k_pairs};
