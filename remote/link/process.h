/* process.h - other programs: the user's ssh and git. */
#ifndef FM_REMOTE_LINK_PROCESS_H
#define FM_REMOTE_LINK_PROCESS_H

#include <sys/types.h>

#include "store/base/buf.h"

FM_BEGIN_DECLS

/* Starts argv[0], found on the path, with fd as its standard input and output. error: its standard
 * error; -1: that of this process; FMR_NO_ERROR: none. environment NULL: that of this process.
 * FM_EUNSUPPORTED: there is no such program. */
#define FMR_NO_ERROR (-2)
FM_CHECKED fm_status fmr_spawn(pid_t *pid, char *const argv[], char *const environment[], int fd,
                               int error);
/* Waits for its end; one that is not over within so many seconds is told to, and then killed. What
 * waitpid says. */
int fmr_reap(pid_t pid, double within_s);

#define FMR_GIT_WORDS_MAX 4096u
typedef struct fmr_git_run {
    char *const *argv; /* "git", ..., NULL */
    fm_span say;       /* its standard input */
    fm_buf *answer;    /* its standard output; more than its room is FM_ELIMIT */
    /* The most that it, and each program that it starts, may write into one file and take of
     * memory; 0: no limit. */
    uint64_t file_bytes, memory_bytes;
    bool listen; /* words are wanted; else what it complains of is seen on a terminal alone */
    /* out */
    int code;                      /* its exit status; a signal counts as 128 + its number */
    char words[FMR_GIT_WORDS_MAX]; /* the end of its standard error, without control characters
                                    * but line breaks */
} fmr_git_run;
/* Runs git, as its user has set it up, in no repository but the one that argv names: variables like
 * GIT_DIR are taken away. Without a terminal nobody is asked for a password. A request to stop
 * (store/base/cancel.h) ends it. FM_EUNSUPPORTED: git is missing. */
FM_CHECKED fm_status fmr_git(fmr_git_run *g);

FM_END_DECLS
#endif
