/* io_impl.h - what io.c and io_path.c share. */
#ifndef FM_BASE_IO_IMPL_H
#define FM_BASE_IO_IMPL_H

#include "store/base/os/io.h"

FM_BEGIN_DECLS

/* Called before every call that changes the file system. True: do not make it; errno says why. */
bool fms_io_gate(void);
int fms_io_fsync(int fd);                          /* passes the gate; goes on after a signal */
int fms_io_gate_open(const char *path, int flags); /* likewise; opens, or makes, the file */
int fms_io_open_read(const char *path, int flags);
/* FM_ENOTFOUND, FM_ENOMEM or FM_EIO by errno: "cannot VERB PATH: why". */
fm_status fms_io_fail(const char *verb, const char *path);
char *fms_io_folder(const char *path); /* the folder that holds path; fm_free, NULL = ENOMEM */
FM_CHECKED fm_status fms_io_fsync_folder(const char *path);

FM_END_DECLS
#endif
