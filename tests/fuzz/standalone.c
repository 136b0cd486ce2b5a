/* standalone.c - replays files through a fuzz target, so that corpora run as ordinary tests where
 * there is no fuzzing engine. Arguments are files or folders of files. An empty corpus is a visible
 * skip (77): a target without inputs tests nothing. */
#include "store/base/error.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

#include <stdio.h>
#include <string.h>

#define SKIP 77
#define MAX_INPUT_BYTES ((size_t)64 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static fm_status replay_file(const char *path, size_t *count)
{
    fm_buf text;

    fm_buf_init(&text, 0);
    fm_status rc = fm_read_file(&text, path, MAX_INPUT_BYTES);
    /* An exact copy on the heap: the sanitizer then sees a read of one byte too many. */
    uint8_t *exact = rc >= 0 ? fm_memdup(fm_buf_cstr(&text), text.len) : NULL;
    if (rc >= 0 && !exact)
        rc = FM_ENOMEM;
    if (rc >= 0) {
        LLVMFuzzerTestOneInput(exact, text.len);
        ++*count;
    }
    fm_free(exact);
    fm_buf_release(&text);
    return rc;
}

static fm_status replay(const char *path, size_t *count)
{
    fm_names names;

    if (!fm_path_exists(path))
        return FM_OK;
    if (!fm_path_is_dir(path))
        return replay_file(path, count);
    fm_status rc = fm_list_dir(&names, path);
    for (size_t i = 0; i < names.count && rc >= 0; i++) {
        char *child = fm_path_join(path, names.name[i]);
        rc = child ? replay(child, count) : FM_ENOMEM;
        fm_free(child);
    }
    fm_names_release(&names);
    return rc;
}

int main(int argc, char **argv)
{
    size_t count = 0;

    for (int i = 1; i < argc; i++)
        if (replay(argv[i], &count) < 0) {
            fprintf(stderr, "%s: %s\n", argv[i], fm_error_text());
            return 1;
        }
    printf("%zu inputs replayed\n", count);
    return count ? 0 : SKIP;
}
