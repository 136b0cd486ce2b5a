/* module.c - finds and opens device modules, and opens devices by name. */
#include "infer/device/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "infer/infer.h"

#define MODULE_FILE "libfmstore-cuda.so"
#define MODULE_ENV "FMSTORE_CUDA_MODULE"
#define OR_CPU "or use --device cpu"

static struct {
    pthread_mutex_t lock;
    const fm_module *module; /* NULL until it is opened; then it stays */
    char path[PATH_MAX];
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

static fm_status host_fail(fm_status rc, const char *text)
{
    return fm_fail(rc, "%s", text);
}

static const fm_module_host host = {.abi = FM_MODULE_ABI, .fail = host_fail};

/* ==== the file ==== */

/* The folder of the running program, "" where the system does not give it. */
static void program_folder(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
}

static fm_status find_module(char out[PATH_MAX])
{
    static const char *const places[] = {"", "/../lib/fmstore", "/../infer/cuda"};
    const char *named = getenv(MODULE_ENV);
    char folder[PATH_MAX];
    int n = 0;
    if (named && *named) {
        n = snprintf(out, PATH_MAX, "%s", named);
        if (n < PATH_MAX && access(out, R_OK) == 0)
            return FM_OK;
        return fm_fail(FM_EUNSUPPORTED, MODULE_ENV " names '%s': %s; mend it, " OR_CPU, named,
                       strerror(n < PATH_MAX ? errno : ENAMETOOLONG));
    }
    program_folder(folder);
    for (size_t i = 0; *folder && i < FM_ARRAY_LEN(places); i++) {
        n = snprintf(out, PATH_MAX, "%s%s/" MODULE_FILE, folder, places[i]);
        if (n < PATH_MAX && access(out, R_OK) == 0)
            return FM_OK;
    }
    return fm_fail(FM_EUNSUPPORTED,
                   "this build has no CUDA module (no " MODULE_FILE
                   " beside the program or in ../lib/fmstore): build with -DFM_CUDA=ON, name the "
                   "file in " MODULE_ENV ", " OR_CPU);
}

static fm_status open_module(const char *path, const fm_module **out)
{
    fm_module_get_fn get = NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return fm_fail(FM_EUNSUPPORTED,
                       "CUDA module: %s: install what is missing, name another file in " MODULE_ENV
                       ", " OR_CPU,
                       dlerror());
    void *symbol = dlsym(so, "fm_module_get");
    memcpy(&get, &symbol, sizeof(get));
    const fm_module *m = get ? get(&host) : NULL;
    if (m && m->abi == FM_MODULE_ABI) {
        *out = m;
        return FM_OK;
    }
    (void)dlclose(so);
    return fm_fail(FM_EUNSUPPORTED,
                   get ? "CUDA module %s: it is of another version of fmstore; build both from one "
                         "source, " OR_CPU
                       : "%s is no device module of fmstore; name the right file in " MODULE_ENV
                         ", " OR_CPU,
                   path);
}

fm_status fm_module_cuda(const fm_module **out)
{
    fm_status rc = FM_OK;
    *out = NULL;
    (void)pthread_mutex_lock(&cuda.lock);
    if (!cuda.module) {
        char path[PATH_MAX];
        rc = find_module(path);
        FM_THEN(rc, open_module(path, &cuda.module));
        if (rc == FM_OK)
            memcpy(cuda.path, path, strlen(path) + 1);
    }
    *out = cuda.module;
    (void)pthread_mutex_unlock(&cuda.lock);
    return rc;
}

const char *fm_device_module(void)
{
    return cuda.path;
}

/* ==== devices by name ==== */

fm_status fm_device_count(uint32_t *out)
{
    const fm_module *m;
    *out = 0;
    FM_TRY(fm_module_cuda(&m));
    return m->count(out);
}

fm_status fm_device_describe(char *text, size_t cap, uint32_t device)
{
    const fm_module *m;
    text[0] = '\0';
    FM_TRY(fm_module_cuda(&m));
    return m->describe(text, cap, device);
}

static fm_status open_cuda(fm_backend **out, uint32_t device, const char *mode, fm_pool *pool)
{
    const fm_module *m;
    uint32_t count = 0;
    FM_TRY(fm_module_cuda(&m));
    FM_TRY(m->count(&count));
    if (count == 0)
        return fm_fail(FM_EUNSUPPORTED, "CUDA: no GPU is there; use --device cpu");
    if (device >= count)
        return fm_fail(FM_EINVAL,
                       "device cuda:%u: this machine has %u (cuda:0 to cuda:%u); 'fmstore devices' "
                       "lists them",
                       device, count, count - 1);
    return m->open(out, device, mode, pool);
}

/* Parses "cuda" (device 0) and "cuda:N", N at most six digits. */
static bool parse_cuda(const char *name, uint32_t *device)
{
    uint64_t n = 0;
    *device = 0;
    if (strncmp(name, "cuda", 4) != 0)
        return false;
    if (name[4] == '\0')
        return true;
    const char *p = name + 5;
    if (name[4] != ':' || !*p || strlen(p) > 6)
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        n = n * 10 + (uint64_t)(*p - '0');
    *device = (uint32_t)n;
    return *p == '\0';
}

fm_status fm_device_check(const char *name)
{
    uint32_t device;
    if (!name || strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 || parse_cuda(name, &device))
        return FM_OK;
    return fm_fail(FM_EINVAL, "device '%s' is unknown; cpu, cuda, cuda:N and auto are", name);
}

fm_status fm_backend_open_on(fm_backend **out, const char *name, const char *mode, fm_pool *pool)
{
    uint32_t device = 0, count = 0;
    *out = NULL;
    fm_status rc = fm_device_check(name);
    if (rc != FM_OK)
        return rc;
    if (name && strcmp(name, "auto") == 0) {
        rc = fm_device_count(&count);
        if (rc == FM_OK && count > 0)
            return open_cuda(out, 0, mode, pool);
        fm_error_clear();
        return fm_backend_open(out, mode, pool);
    }
    if (name && parse_cuda(name, &device))
        return open_cuda(out, device, mode, pool);
    return fm_backend_open(out, mode, pool);
}
