/* bench_blame.c - is blame right? Faults are planted in families of the atlas, and it is asked for
 * them.
 *
 * bench_blame [--families N] [--seed S] [--only KINDS] [--seeds K] [--confidence P] [--dir DIR]
 *             [--planted] [--quick]
 *
 * KINDS: letters of blame_plant.py's kinds (abcde). --seeds: searches a family and flip rate.
 * --dir keeps the repository there; --planted takes the one that is there instead of planting.
 * --quick: five small families. A run of one size and seed prints the same tables. */
#include "tests/bench/blame_bench.h"

#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/os/io.h"
#include "tests/bench/bench_kit.h"

extern char **environ;

typedef struct options {
    const char *families, *seed, *only, *dir;
    unsigned seeds;
    double confidence;
    bool planted, quick;
} options;

static bool take_option(options *o, const char *word, const char *value, int *used)
{
    const char **text = strcmp(word, "--families") == 0 ? &o->families
                        : strcmp(word, "--seed") == 0   ? &o->seed
                        : strcmp(word, "--only") == 0   ? &o->only
                        : strcmp(word, "--dir") == 0    ? &o->dir
                                                        : NULL;
    *used = 1;
    if (strcmp(word, "--planted") == 0)
        return o->planted = true;
    if (strcmp(word, "--quick") == 0)
        return o->quick = true;
    *used = 2;
    if (!value)
        return false;
    if (strcmp(word, "--seeds") == 0)
        o->seeds = (unsigned)strtoul(value, NULL, 10);
    else if (strcmp(word, "--confidence") == 0)
        o->confidence = strtod(value, NULL);
    else if (text)
        *text = value;
    else
        return false;
    return true;
}

static fm_status plant(const options *o, const char *self)
{
    char script[] = FM_SOURCE_DIR "/tests/bench/blame_plant.py",
         atlas[] = FM_SOURCE_DIR "/examples/atlas";
    const char *argv[] = {"python3",
                          script,
                          "--repo",
                          o->dir,
                          "--fmstore",
                          BB_PROGRAM,
                          "--damage",
                          self,
                          "--atlas",
                          atlas,
                          "--families",
                          o->families,
                          "--seed",
                          o->seed,
                          "--only",
                          o->only,
                          o->quick ? "--short" : NULL,
                          NULL};
    pid_t pid;
    int status = 0;
    if (posix_spawnp(&pid, argv[0], NULL, NULL, (char **)(uintptr_t)argv, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0)
        return fm_fail(FM_EIO, "blame_plant.py failed");
    return FM_OK;
}

static void print_counts(const bench *b)
{
    const fm_json *failed = fm_json_get(b->doc, "failed");
    for (const char *k = b->kinds; *k; k++) {
        size_t counts = 0, discarded = 0, not_planted = 0;
        for (size_t i = 0; i < b->count; i++) {
            counts += b->family[i].kind == *k && !b->family[i].discard;
            discarded += b->family[i].kind == *k && b->family[i].discard;
        }
        for (size_t i = 0; i < fm_json_count(failed); i++)
            not_planted += fm_json_cstr(fm_json_get(fm_json_at(failed, i), "kind"), "?")[0] == *k;
        if (counts + discarded + not_planted)
            printf("kind %c: %zu count; %zu discarded by exhaustive evaluation; %zu could not be "
                   "planted\n",
                   *k, counts, discarded, not_planted);
    }
}

static fm_status study(bench *b, const options *o)
{
    fm_status rc = bb_tables(b);
    if (rc != FM_OK)
        return rc;
    printf("seed %s, kinds %s, %zu searches a family and flip rate\n", o->seed, o->only,
           (size_t)o->seeds);
    print_counts(b);
    rc = bb_study_history(b, o->seeds);
    if (rc == FM_OK)
        rc = bb_study_units(b, o->seeds);
    return rc == FM_OK ? bb_study_data(b, BB_PROGRAM) : rc;
}

static int run(options *o, const char *self)
{
    char made[] = "/tmp/fmstore-blame.XXXXXX";
    char *dir = o->dir ? realpath(o->dir, NULL) : NULL;
    cli c = {.dir = "."};
    bench b = {.c = &c,
               .kinds = o->only,
               .seed = strtoull(o->seed, NULL, 10),
               .confidence = o->confidence};
    fm_status rc = FM_OK;
    if (!o->dir) {
        if (!mkdtemp(made))
            return EXIT_FAILURE_128;
        o->dir = made;
    }
    b.dir = dir ? dir : o->dir;
    if (!o->planted)
        rc = plant(o, self);
    if (rc == FM_OK && chdir(b.dir) != 0)
        rc = fm_fail(FM_EIO, "%s: not a folder", b.dir);
    if (rc == FM_OK)
        rc = study(&b, o);
    bb_tables_release(&b);
    fm_engine_free(c.engine);
    fm_repo_close(c.repo);
    if (o->dir == made && fm_remove_tree(made) != FM_OK)
        fprintf(stderr, "%s stays\n", made);
    printf("%.0f s of CPU, without planting\n", bb_cpu_s());
    free(dir);
    return cli_exit(rc);
}

int main(int argc, char **argv)
{
    options o = {.families = "40", .seed = "1", .only = "abcde", .seeds = 10};
    if (argc > 1 && strcmp(argv[1], "--damage") == 0)
        return bb_damage(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--weigh-adapter") == 0)
        return bb_weigh_adapter(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--reset-layers") == 0)
        return bb_reset_layers(argc - 2, argv + 2);
    for (int i = 1, used = 1; i < argc; i += used)
        if (!take_option(&o, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &used)) {
            fprintf(stderr,
                    "usage: bench_blame [--families N] [--seed S] [--only KINDS] [--seeds K] "
                    "[--dir DIR] [--planted] [--quick]\n");
            return EXIT_USAGE;
        }
    if (o.quick && strcmp(o.families, "40") == 0)
        o.families = "5";
    return run(&o, realpath("/proc/self/exe", NULL));
}
