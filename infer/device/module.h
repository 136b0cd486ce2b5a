/* module.h - devices that live in a shared module opened at run time, so that one fmstore binary
 * runs on machines with and without their driver.
 *
 * This header is the contract of both sides, and compiles as C and C++. The module is linked
 * against no library of fmstore: it has the types of backend.h and the fm_module_host that the
 * program passes. Its only exported symbol is fm_module_get. The program opens a module once in a
 * process and never closes it: the driver's own threads outlive any backend. */
#ifndef FM_INFER_MODULE_H
#define FM_INFER_MODULE_H

#include "infer/backend.h"

FM_BEGIN_DECLS

struct fmc_nccl_card;

/* Raised with each change of this header, of struct fm_backend or of fmc_nccl (comm/wire.h). */
#define FM_MODULE_ABI 5

typedef struct fm_module_host {
    uint32_t abi; /* FM_MODULE_ABI of the host */
    /* Sets the calling thread's error text; returns rc. text is copied. */
    fm_status (*fail)(fm_status rc, const char *text);
} fm_module_host;

/* Every call may come from any thread. */
typedef struct fm_module {
    uint32_t abi;     /* FM_MODULE_ABI of the module */
    const char *name; /* "cuda" */
    /* FM_EUNSUPPORTED: no driver or no GPU, with the reason. */
    fm_status (*count)(uint32_t *devices_out);
    /* One line to print: name, memory, compute capability. Cut to cap, always terminated. */
    fm_status (*describe)(char *text, size_t cap, uint32_t device);
    /* As fm_backend_open: FM_EUNSUPPORTED names a mode that the device lacks. pool is borrowed and
     * must outlive the backend; NULL: the calling thread. */
    fm_status (*open)(fm_backend **out, uint32_t device, const char *mode, fm_pool *pool);
    /* Sets *out to what a wire over NCCL needs of a backend of this module (comm/wire.h). NULL
     * slot: the module has no NCCL. FM_EUNSUPPORTED: the library is not installed. Called on the
     * backend's thread. */
    fm_status (*nccl)(fm_backend *be, struct fmc_nccl_card *out);
} fm_module;

/* ---- the host's side ---- */

/* The module of CUDA devices, opened at the first call: the file that FMSTORE_CUDA_MODULE names,
 * else the first libfmstore-cuda.so beside the program, in ../lib/fmstore or ../infer/cuda from
 * there. FM_EUNSUPPORTED: the text names what is missing and what to do. */
FM_CHECKED fm_status fm_module_cuda(const fm_module **out);
/* The function that the module exports as "fm_module_get". host outlives the module. Returns NULL
 * where the host's abi is not the module's. */
typedef const fm_module *(*fm_module_get_fn)(const fm_module_host *host);
#if defined(FM_MODULE_BUILD)
__attribute__((visibility("default"))) const fm_module *fm_module_get(const fm_module_host *host);
#endif

FM_END_DECLS
#endif
