/* wire_mpi.c - opens the module linked to MPI (mpi_module.c): the program runs without MPI. */
#include "infer/comm/wire.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/mem.h"

#define MODULE "fmstore_mpi.so"

/* Opens the module at a path relative to the program's folder; path is set to that path. */
static void *open_near(const char *relative, char *path, size_t cap)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return NULL;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return NULL;
    *slash = '\0';
    (void)snprintf(path, cap, "%s/%s", self, relative);
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

/* RTLD_GLOBAL, because Open MPI loads components that use its symbols. */
fm_status fm_wire_mpi(fm_wire **out, double step_timeout_s)
{
    static const fm_mpi_host host = {.fail = fm_fail, .calloc = fm_calloc, .free = fm_free};
    char path[4608] = MODULE;
    const char *named = getenv("FM_MPI_MODULE");
    void *module = NULL;
    *out = NULL;
    if (named && *named)
        module = dlopen(named, RTLD_NOW | RTLD_GLOBAL);
    else
        module = open_near(MODULE, path, sizeof(path));
    if (!module && !(named && *named))
        module = open_near("../lib/fmstore/" MODULE, path, sizeof(path));
    if (!module)
        return fm_fail(FM_EUNSUPPORTED,
                       "MPI is not part of this build, or is not installed: %s; build with "
                       "-DFM_MPI=ON, or use --ranks on one host",
                       dlerror());
    union { /* ISO C has no conversion from void * to a function */
        void *object;
        fm_mpi_open function;
    } open = {.object = dlsym(module, FM_MPI_SYMBOL)};
    if (!open.object) {
        (void)dlclose(module);
        return fm_fail(FM_EVERSION, "%s is of another version of fmstore",
                       named && *named ? named : path);
    }
    return open.function(out, step_timeout_s, &host); /* the module stays: MPI cannot be unloaded */
}
