/* io_impl.h - what io.c and io_path.c share. */
#ifndef FM_BASE_IO_IMPL_H
#define FM_BASE_IO_IMPL_H

#include "store/base/os/io.h"

FM_BEGIN_DECLS

/* Before every call that changes the file system. True: it must not be made, errno says why. */
bool fms_io_gate(void);
int fms_io_fsync(int fd); /* behind the gate; not ended by a signal */
int fms_io_gate_open(const char *path, int flags); /* likewise; of a file that may be new */
int fms_io_open_read(const char *path, int flags);
/* FM_ENOTFOUND, FM_ENOMEM or FM_EIO by errno: "cannot VERB PATH: why". */
fm_status fms_io_fail(const char *verb, const char *path);
char *fms_io_folder(const char *path); /* that holds it; fm_free, NULL = ENOMEM */
FM_CHECKED fm_status fms_io_fsync_folder(const char *path);

FM_END_DECLS
#endif
