/* mhd.c - opens libmicrohttpd and finds its functions. */
#include "infer/serve/mhd.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define LIBRARY "libmicrohttpd.so.12" /* the ABI of all versions from 0.9.60 on */

fmi_mhd_functions fmi_mhd;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library;

static fm_status find(void *so, void *to, const char *name)
{
    void *symbol = dlsym(so, name);
    if (!symbol)
        return fm_fail(FM_EUNSUPPORTED, "serve: " LIBRARY " has no %s; install a newer one", name);
    memcpy(to, &symbol, sizeof symbol); /* ISO C has no conversion from void * to a function */
    return FM_OK;
}

static fm_status open_library(void)
{
    void *so = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return fm_fail(FM_EUNSUPPORTED, "serve: %s; install libmicrohttpd12", dlerror());
    fm_status rc = FM_OK;
#define FIND(name) FM_THEN(rc, find(so, &fmi_mhd.name, "MHD_" #name));
    FMI_MHD_FUNCTIONS(FIND)
#undef FIND
    if (rc == FM_OK)
        library = so;
    else
        (void)dlclose(so);
    return rc;
}

fm_status fmi_mhd_open(void)
{
    (void)pthread_mutex_lock(&lock);
    fm_status rc = library ? FM_OK : open_library();
    (void)pthread_mutex_unlock(&lock);
    return rc;
}
