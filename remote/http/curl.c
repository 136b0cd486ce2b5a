/* curl.c - opens libcurl and finds its functions. */
#include "remote/http/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define LIBRARY "libcurl.so.4" /* the ABI of all versions since 2006 */

fmr_curl_functions fmr_curl;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library;

static fm_status find(void *so, void *to, const char *name)
{
    void *symbol = dlsym(so, name);
    if (!symbol)
        return fm_fail(FM_EUNSUPPORTED, "http: " LIBRARY " has no %s; install a newer one", name);
    memcpy(to, &symbol, sizeof symbol); /* ISO C has no conversion from void * to a function */
    return FM_OK;
}

static fm_status open_library(void)
{
    void *so = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return fm_fail(FM_EUNSUPPORTED, "http: %s; install libcurl4", dlerror());
    fm_status rc = FM_OK;
#define FIND(name) FM_THEN(rc, find(so, &fmr_curl.name, "curl_" #name));
    FMR_CURL_FUNCTIONS(FIND)
#undef FIND
    if (rc == FM_OK && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        rc = fm_fail(FM_EUNSUPPORTED, "http: " LIBRARY " cannot begin; install a newer one");
    if (rc == FM_OK)
        library = so;
    else
        (void)dlclose(so);
    return rc;
}

fm_status fmr_curl_open(void)
{
    (void)pthread_mutex_lock(&lock);
    fm_status rc = library ? FM_OK : open_library();
    (void)pthread_mutex_unlock(&lock);
    return rc;
}
