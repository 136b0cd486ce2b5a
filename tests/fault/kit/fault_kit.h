/* fault_kit.h - a small repository, the commands that change it, and what must hold after each of
 * them met its fate under the injector (preload/record.h).
 *
 * Commands are the built program itself (FM_BIN), started with the injector (FM_INJECT) preloaded;
 * checks are made in this process through the public headers. Dates and names are fixed by the
 * environment, so that a command's refs are known from a run that nothing disturbed. */
#ifndef FM_TESTS_FAULT_KIT_H
#define FM_TESTS_FAULT_KIT_H

#include "lineage/lineage.h"
#include "tests/fault/preload/record.h"
#include "tests/testkit.h"

#define FK_MAX_REFS 256
#define FK_MAX_CALLS 4096

typedef struct fk_ref {
    char name[256];
    fm_oid oid;
} fk_ref;
typedef struct fk_refs {
    fk_ref ref[FK_MAX_REFS];
    size_t count;
} fk_refs;

typedef struct fk_command {
    const char *name;
    const char *argv[20]; /* after "fmstore -C <work>"; "@x" is the file x of the world */
    bool optional;        /* left out where the program has no such command */
    fk_refs after;        /* of an undisturbed run */
    uint32_t *kind;       /* of each call it makes, in order */
    uint64_t *len;
    bool *foreign; /* by libgit2 or SQLite */
    bool *first;   /* of its kind on such a file (folder, ending), of all commands learnt */
    size_t calls;
    uint64_t us; /* how long it took */
} fk_command;

typedef struct fk_world {
    char *dir;   /* scratch, in memory where the machine has such a place */
    char *sound; /* the repository before a command */
    char *work;  /* its copy that commands run on */
    fk_refs before;
    fk_command *command;
    size_t commands;
} fk_world;

/* How a command is to fare; at 0: undisturbed. */
typedef struct fk_fate {
    uint64_t at;
    const char *how; /* record.h's words */
    bool forever;
    const char *log; /* NULL: none */
    bool data;
} fk_fate;

/* How many of n points to take: with sanitizers, where a start of the program costs ten times as
 * much and most of what is tested is not memory, an eighth. */
unsigned fk_scaled(unsigned n);
/* Scratch folders in memory, where the machine has such a place: nothing waits for a disk. */
void fk_use_memory(void);
/* false: this machine or build cannot run it; why is printed. */
bool fk_available(void);
void fk_world_make(fk_world *w);
void fk_world_free(fk_world *w);
void fk_reset(fk_world *w); /* work = sound */
void fk_copy_tree(const char *from, const char *to);
/* Kills it after so many microseconds, if it has not ended by then. */
int fk_run_until(const fk_world *w, const fk_command *c, uint64_t us);
/* Exit code, or -signal. The last lines of its stderr are in fk_said(). */
int fk_run(const fk_world *w, const fk_command *c, const fk_fate *fate);
const char *fk_said(void);
/* Runs c undisturbed on a copy, notes its refs and its calls. */
void fk_learn(fk_world *w, fk_command *c);

/* All that is wrong with the repository, "" = nothing: it opens, fsck in full finds nothing, each
 * ref is where `before` or `after` has it, and what each version of `before` held reads with the
 * same bytes. wants_after: each ref is where `after` has it. */
const char *fk_wrong(const char *repo, const fk_refs *before, const fk_refs *after,
                     bool wants_after);
/* The digest of every path and byte of a version. */
FM_CHECKED fm_status fk_version_digest(fm_repo *r, fm_digest *out, const fm_oid *oid);
bool fk_is_model(const char *ref);
/* Whether a branch or tag holds that version; the first one that holds what refs->ref[at] does. */
bool fk_has_version(const fk_refs *refs, const fm_oid *oid);
size_t fk_first(const fk_refs *refs, size_t at);
void fk_refs_of(fk_refs *out, const char *repo);
bool fk_refs_equal(const fk_refs *a, const fk_refs *b);
/* Sets the times of all files back, as if the kill had been an hour ago. */
void fk_age(const char *dir);

/* Kills commands: at a call, in the middle of a write, or at any time. Half of the points come on
 * top of what the one before left behind. From point `first` on: a run in parts kills at other
 * points. */
typedef struct fk_crashes {
    unsigned points, killed, landed, done_again, failures;
} fk_crashes;
void fk_crash(fk_world *w, uint64_t seed, uint64_t first, unsigned n, fk_crashes *out);

/* Stops the machine at any point of each command, `points` times each: what was not fsynced is
 * lost, torn or out of order (lost.c). At the end of a command its work must be there. */
typedef struct fk_losses {
    unsigned points, mended, failures;
} fk_losses;
void fk_lose(fk_world *w, uint64_t seed, unsigned points, fk_losses *out);

/* Flips one bit of a random byte of a copy of the repository, n times, and looks at it in a process
 * of its own. In a pack of the store, or in git's packs, their indexes and refs: it must be
 * told, naming the file or object (a ref that reads as before may stay untold). Anywhere else: what
 * is read is what was written, or an error. Prints what it saw; returns the number of failures. */
typedef struct fk_flips {
    unsigned flips, told, harmless, read_right, read_refused, failures;
} fk_flips;
void fk_flip(fk_world *w, uint64_t seed, unsigned n, fk_flips *out);

#endif
