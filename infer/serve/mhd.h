/* mhd.h - libmicrohttpd, opened when a server begins: with the nine libraries that it needs, its
 * linking took a quarter of the time of each short command. The folder includes this file instead
 * of <microhttpd.h>, and calls the functions by their own names. */
#ifndef FM_INFER_SERVE_MHD_H
#define FM_INFER_SERVE_MHD_H

#include <microhttpd.h>

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMI_MHD_FUNCTIONS(X)                                                                       \
    X(add_response_header)                                                                         \
    X(create_response_from_buffer_with_free_callback)                                              \
    X(create_response_from_callback)                                                               \
    X(destroy_response)                                                                            \
    X(get_connection_info)                                                                         \
    X(get_connection_values)                                                                       \
    X(get_daemon_info)                                                                             \
    X(lookup_connection_value)                                                                     \
    X(queue_response)                                                                              \
    X(resume_connection)                                                                           \
    X(start_daemon)                                                                                \
    X(stop_daemon)                                                                                 \
    X(suspend_connection)

typedef struct fmi_mhd_functions {
#define FMI_MHD_MEMBER(name) __typeof__(MHD_##name) *name;
    FMI_MHD_FUNCTIONS(FMI_MHD_MEMBER)
#undef FMI_MHD_MEMBER
} fmi_mhd_functions;

extern fmi_mhd_functions fmi_mhd; /* NULL until fmi_mhd_open */

/* Opens the library once a process; it stays open. Called before any of the functions. */
FM_CHECKED fm_status fmi_mhd_open(void);

#define MHD_add_response_header fmi_mhd.add_response_header
#define MHD_create_response_from_buffer_with_free_callback                                         \
    fmi_mhd.create_response_from_buffer_with_free_callback
#define MHD_create_response_from_callback fmi_mhd.create_response_from_callback
#define MHD_destroy_response fmi_mhd.destroy_response
#define MHD_get_connection_info fmi_mhd.get_connection_info
#define MHD_get_connection_values fmi_mhd.get_connection_values
#define MHD_get_daemon_info fmi_mhd.get_daemon_info
#define MHD_lookup_connection_value fmi_mhd.lookup_connection_value
#define MHD_queue_response fmi_mhd.queue_response
#define MHD_resume_connection fmi_mhd.resume_connection
#define MHD_start_daemon fmi_mhd.start_daemon
#define MHD_stop_daemon fmi_mhd.stop_daemon
#define MHD_suspend_connection fmi_mhd.suspend_connection

FM_END_DECLS
#endif
