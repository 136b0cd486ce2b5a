/* curl.h - libcurl, opened at the first request: linking it, with the thirty libraries that it
 * needs, would cost every short command. http.c includes this file instead of <curl/curl.h>, and
 * calls the functions by their own names. */
#ifndef FM_REMOTE_HTTP_CURL_H
#define FM_REMOTE_HTTP_CURL_H

#define CURL_DISABLE_TYPECHECK /* its macros have the functions' names */
#include <curl/curl.h>
#undef curl_easy_setopt
#undef curl_easy_getinfo

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMR_CURL_FUNCTIONS(X)                                                                      \
    X(easy_cleanup)                                                                                \
    X(easy_getinfo)                                                                                \
    X(easy_init)                                                                                   \
    X(easy_reset)                                                                                  \
    X(easy_setopt)                                                                                 \
    X(easy_strerror)                                                                               \
    X(free)                                                                                        \
    X(global_init)                                                                                 \
    X(multi_add_handle)                                                                            \
    X(multi_cleanup)                                                                               \
    X(multi_info_read)                                                                             \
    X(multi_init)                                                                                  \
    X(multi_perform)                                                                               \
    X(multi_poll)                                                                                  \
    X(multi_remove_handle)                                                                         \
    X(multi_strerror)                                                                              \
    X(slist_append)                                                                                \
    X(slist_free_all)                                                                              \
    X(url)                                                                                         \
    X(url_cleanup)                                                                                 \
    X(url_get)                                                                                     \
    X(url_set)

typedef struct fmr_curl_functions {
#define FMR_CURL_MEMBER(name) __typeof__(curl_##name) *name;
    FMR_CURL_FUNCTIONS(FMR_CURL_MEMBER)
#undef FMR_CURL_MEMBER
} fmr_curl_functions;

extern fmr_curl_functions fmr_curl; /* NULL until fmr_curl_open */

/* Opens the library once a process; it stays open. Called before any of the functions. */
FM_CHECKED fm_status fmr_curl_open(void);

#define curl_easy_cleanup fmr_curl.easy_cleanup
#define curl_easy_getinfo fmr_curl.easy_getinfo
#define curl_easy_init fmr_curl.easy_init
#define curl_easy_reset fmr_curl.easy_reset
#define curl_easy_setopt fmr_curl.easy_setopt
#define curl_easy_strerror fmr_curl.easy_strerror
#define curl_free fmr_curl.free
#define curl_global_init fmr_curl.global_init
#define curl_multi_add_handle fmr_curl.multi_add_handle
#define curl_multi_cleanup fmr_curl.multi_cleanup
#define curl_multi_info_read fmr_curl.multi_info_read
#define curl_multi_init fmr_curl.multi_init
#define curl_multi_perform fmr_curl.multi_perform
#define curl_multi_poll fmr_curl.multi_poll
#define curl_multi_remove_handle fmr_curl.multi_remove_handle
#define curl_multi_strerror fmr_curl.multi_strerror
#define curl_slist_append fmr_curl.slist_append
#define curl_slist_free_all fmr_curl.slist_free_all
#define curl_url fmr_curl.url
#define curl_url_cleanup fmr_curl.url_cleanup
#define curl_url_get fmr_curl.url_get
#define curl_url_set fmr_curl.url_set

FM_END_DECLS
#endif
