/* flips.c - one bit of one byte of one file is not what it was. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "tests/fault/kit/fault_kit.h"

enum { MAX_FILES = 256, TOLD_BYTES = 20000, PATH_BYTES = 512 };

typedef enum kind { PACK, GIT, OTHER, KINDS } kind;

typedef struct file {
    char path[PATH_BYTES]; /* below the repository */
    uint64_t bytes;
    kind kind;
} file;

typedef struct flip {
    const fk_world *w;
    const fm_digest *want; /* of the versions of w->before */
    const file *f;
    uint64_t at;
    unsigned bit;
} flip;

/* What the child saw, in memory that both see. */
typedef struct seen {
    bool told, named, harmless, wrong;
    unsigned right, refused;
    char text[TOLD_BYTES];
} seen;

static kind kind_of(const char *path)
{
    if (fm_starts_with(path, ".fmstore/packs/"))
        return PACK;
    if (fm_starts_with(path, ".fmstore/lineage.git/objects/") ||
        fm_starts_with(path, ".fmstore/lineage.git/refs/") || strstr(path, "packed-refs"))
        return GIT;
    return OTHER;
}

static void list_files(const char *root, const char *below, file *list, size_t *count)
{
    char *dir = fm_path_join(root, below);
    fm_names names;
    tk_ok(fm_list_dir(&names, dir));
    for (size_t i = 0; i < names.count; i++) {
        char *path = fm_path_join(dir, names.name[i]);
        file *f = &list[*count];
        assert_true(*count < MAX_FILES);
        snprintf(f->path, sizeof f->path, "%s/%s", below, names.name[i]);
        if (fm_path_is_dir(path)) {
            char folder[PATH_BYTES]; /* the entry is written over */
            memcpy(folder, f->path, sizeof folder);
            list_files(root, folder, list, count);
        } else {
            tk_ok(fm_file_bytes(&f->bytes, path));
            f->kind = kind_of(f->path);
            *count += f->bytes > 0;
        }
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
}

/* A file by kind, kinds alike; in a kind half by size, half each file alike: small ones count. */
static const file *choose(const file *list, size_t count, uint64_t seed, uint64_t n)
{
    kind k = (kind)fm_rng_below(seed, 1, n, KINDS);
    uint64_t total = 0;
    bool by_size = fm_rng_below(seed, 2, n, 2) == 0;
    for (size_t i = 0; i < count; i++)
        total += list[i].kind == k ? (by_size ? list[i].bytes : 1) : 0;
    uint64_t at = fm_rng_below(seed, 3, n, total);
    size_t i = 0;
    for (; i + 1 < count; i++) {
        uint64_t weight = list[i].kind == k ? (by_size ? list[i].bytes : 1) : 0;
        if (at < weight)
            break;
        at -= weight;
    }
    return &list[i];
}

static void apply(const flip *p)
{
    char *path = fm_path_join(p->w->work, p->f->path);
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)p->at), 1);
    byte ^= (uint8_t)(1u << p->bit);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)p->at), 1);
    close(fd);
    fm_free(path);
}

/* ==== in the child ========================================================================= */

static void tell(seen *s, const char *text)
{
    size_t at = strlen(s->text);
    s->told = true;
    snprintf(s->text + at, sizeof s->text - at, "%s\n", text);
}

static void on_fault(void *ctx, const char *text)
{
    tell(ctx, text);
}

/* By the file's own name, or that of the ref. */
static bool is_named(const file *f, const char *text)
{
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "%s", fm_path_base(f->path));
    if (f->kind == PACK)
        name[FM_HEX_CHARS] = '\0';
    if (strstr(f->path, "/refs/"))
        snprintf(name, sizeof name, "%s", strstr(f->path, "refs/"));
    return strstr(text, name) != NULL;
}

/* Each version is read once, however many names it has. */
static void read_all(seen *s, const flip *p, fm_repo *r)
{
    static fm_digest got[FK_MAX_REFS];
    static bool read[FK_MAX_REFS];
    s->harmless = true;
    for (size_t i = 0; i < p->w->before.count; i++) {
        const fk_ref *ref = &p->w->before.ref[i];
        fm_oid oid;
        if (!fk_is_model(ref->name))
            continue;
        size_t k = fk_first(&p->w->before, i);
        if (k == i)
            read[i] = fk_version_digest(r, &got[i], &ref->oid) == FM_OK;
        if (fm_ref_read(r, &oid, ref->name) != FM_OK || !read[k]) {
            s->refused++;
            s->harmless = false;
        } else if (!fm_oid_eq(&oid, &ref->oid) || !fm_digest_eq(&got[k], &p->want[k])) {
            s->wrong = true;
            tell(s, ref->name);
        } else {
            s->right++;
        }
    }
}

static void look(const flip *p, seen *s)
{
    fm_repo *r = NULL;
    fm_fsck_report report;
    if (fm_repo_open(&r, p->w->work) != FM_OK) {
        tell(s, fm_error_text());
    } else {
        read_all(s, p, r);
        if (fm_repo_fsck(r, true, &report, on_fault, s) != FM_OK)
            tell(s, fm_error_text());
    }
    fm_repo_close(r);
    s->named = is_named(p->f, s->text);
}

/* ==== judging ============================================================================== */

static void fail_flip(fk_flips *out, const flip *p, const char *what, const seen *s)
{
    if (++out->failures <= 20)
        print_error("%s, byte %llu of %llu, bit %u: %s: %.600s\n", p->f->path,
                    (unsigned long long)p->at, (unsigned long long)p->f->bytes, p->bit, what,
                    s->text);
}

/* What can be made again must close nothing. */
static bool is_cache(const char *path)
{
    return strstr(path, ".sqlite") || strstr(path, "/logs/") || strstr(path, "/cache/");
}

static void judge(fk_flips *out, const flip *p, const seen *s, int status)
{
    bool is_ref = strstr(p->f->path, "/refs/") || strstr(p->f->path, "packed-refs");
    out->flips++;
    out->told += s->told;
    out->read_right += s->right;
    out->read_refused += s->refused;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_flip(out, p, "the process ended", s);
    else if (s->wrong)
        fail_flip(out, p, "WRONG BYTES were read", s);
    else if (p->f->kind == OTHER && is_cache(p->f->path) && (s->refused || !s->right))
        fail_flip(out, p, "a damaged cache keeps versions from being read", s);
    else if (p->f->kind == OTHER)
        return;
    else if (!s->told && is_ref && s->harmless)
        out->harmless++;
    else if (!s->told)
        fail_flip(out, p, "nothing was told", s);
    else if (!s->named)
        fail_flip(out, p, "what was told names neither file nor ref", s);
    else if (p->f->kind == PACK && s->right + s->refused == 0)
        fail_flip(out, p, "one damaged pack closes the repository", s);
}

static void flip_one(flip *p, seen *s, fk_flips *out)
{
    int status = 0;
    memset(s, 0, sizeof *s);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        look(p, s);
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    judge(out, p, s, status);
}

static fm_digest *digests_of(const fk_world *w)
{
    fm_digest *want = fm_calloc(w->before.count, sizeof *want);
    fm_repo *r;
    tk_ok(fm_repo_open(&r, w->sound));
    for (size_t i = 0; i < w->before.count; i++)
        if (fk_is_model(w->before.ref[i].name))
            tk_ok(fk_version_digest(r, &want[i], &w->before.ref[i].oid));
    fm_repo_close(r);
    return want;
}

void fk_flip(fk_world *w, uint64_t seed, unsigned n, fk_flips *out)
{
    static file list[MAX_FILES];
    size_t count = 0;
    fm_digest *want = digests_of(w);
    seen *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    memset(out, 0, sizeof *out);
    list_files(w->sound, ".fmstore", list, &count);
    for (unsigned i = 0; i < n; i++) {
        flip p = {.w = w, .want = want, .f = choose(list, count, seed, i)};
        p.at = fm_rng_below(seed, 4, i, p.f->bytes);
        p.bit = (unsigned)fm_rng_below(seed, 5, i, 8);
        fk_reset(w);
        apply(&p);
        flip_one(&p, s, out);
    }
    munmap(s, sizeof *s);
    fm_free(want);
    print_message("seed %llu: %u flips in %zu files: %u told, %u of refs that read as before; "
                  "%u versions read right, %u refused; %u failures\n",
                  (unsigned long long)seed, out->flips, count, out->told, out->harmless,
                  out->read_right, out->read_refused, out->failures);
}
