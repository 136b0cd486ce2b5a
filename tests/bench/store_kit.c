/* store_kit.c - clocks, peers, counts and peaks for bench_store. */
#include "tests/bench/store_kit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double clock_s(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

sk_cpu sk_cpu_now(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (sk_cpu){clock_s(CLOCK_PROCESS_CPUTIME_ID),
                    (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec};
}

void sk_cpu_add(sk_cpu *sum, const sk_cpu *begun)
{
    const sk_cpu now = sk_cpu_now();
    sum->all_s += now.all_s - begun->all_s;
    sum->user_s += now.user_s - begun->user_s;
}

static double cpu_s(void)
{
    return clock_s(CLOCK_PROCESS_CPUTIME_ID);
}

double sk_wall_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

static double write_s(const uint8_t *data, size_t bytes)
{
    char *dir = tk_scratch(), *path = fm_path_join(dir, "written");
    fm_writer *w;
    const double begun = cpu_s();
    tk_ok(fm_writer_open(&w, path, NULL));
    tk_ok(fm_writer_write(w, data, bytes));
    tk_ok(fm_writer_write(w, data, bytes));
    tk_ok(fm_writer_commit(w, NULL));
    fm_writer_close(w);
    const double took = cpu_s() - begun;
    tk_ok(fm_remove_file(path));
    fm_free(path);
    fm_free(dir);
    return took;
}

void sk_print_limits(void)
{
    const size_t bytes = (size_t)64 << 20;
    uint8_t *a = fm_malloc(bytes), *b = fm_malloc(bytes);
    fm_digest d[2];
    memset(a, 1, bytes);
    memset(b, 2, bytes);
    double begun = cpu_s();
    for (int i = 0; i < 8; i++) {
        memcpy(b, a, bytes);
        __asm__ volatile("" : : "r"(b) : "memory");
    }
    const double copy = cpu_s() - begun;
    begun = cpu_s();
    tk_ok(fm_sha256(&d[0], a, bytes));
    const double one = cpu_s() - begun;
    begun = cpu_s();
    tk_ok(fm_sha256_two(d, fm_span_of(a, bytes), fm_span_of(b, bytes)));
    const double two = cpu_s() - begun, mb = 1e-6 * (double)bytes;
    printf("limits of this run, one core: memcpy %.0f MB/s, SHA-256 %.0f MB/s (two at once %.0f), "
           "writing a file %.0f MB/s\n",
           8 * mb / copy, mb / one, 2 * mb / two, 2 * mb / write_s(a, bytes));
    fm_free(a);
    fm_free(b);
}

void sk_same_file(const char *a, const char *b)
{
    fm_file_map x, y;
    tk_ok(fm_map_file(&x, a));
    tk_ok(fm_map_file(&y, b));
    if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0) {
        fprintf(stderr, "%s came back with other bytes\n", a);
        exit(1);
    }
    fm_unmap_file(&x);
    fm_unmap_file(&y);
}

/* ==== peers ================================================================================ */

static void take_line(sk_peers *out, const char *line)
{
    if (strncmp(line, "skip ", 5) == 0) {
        size_t at = strlen(out->skipped);
        snprintf(out->skipped + at, sizeof out->skipped - at, "  (%.*s)", (int)strcspn(line, "\n"),
                 line);
    } else if (out->count < SK_PEERS_MAX &&
               sscanf(line, "%31s %lf", out->name[out->count], &out->percent[out->count]) == 2) {
        out->count++;
    }
}

void sk_ask_peers(sk_peers *out, const char *child, const char *parent)
{
    char line[256];
    char *script = tk_source("tests/bench/store_peers.py");
    char *command = fm_asprintf("python3 '%s' '%s' %s%s%s 2>/dev/null", script, child,
                                parent ? "'" : "", parent ? parent : "", parent ? "'" : "");
    memset(out, 0, sizeof *out);
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof line, f))
        take_line(out, line);
    if (!f || pclose(f) != 0)
        take_line(out, "skip peers: python3 with numpy is needed");
    fm_free(command);
    fm_free(script);
}

/* ==== codecs =============================================================================== */

void sk_count_codecs(sk_codecs *k, fm_store *s, const fm_tree *tree)
{
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        fm_object_info info;
        size_t at = 0;
        if (e->kind == FM_ENTRY_FILE)
            continue;
        tk_ok(fm_store_info(s, &info, &e->id));
        while (at < k->count && strcmp(k->name[at], info.codec) != 0)
            at++;
        if (at == SK_CODECS_MAX)
            continue;
        if (at == k->count)
            snprintf(k->name[k->count++], sizeof k->name[0], "%s", info.codec);
        k->raw[at] += info.bytes;
        k->stored[at] += info.stored_bytes;
    }
}

void sk_print_codecs(const sk_codecs *k)
{
    for (size_t i = 0; i < k->count; i++)
        printf("%s%s: %.1f MB as %.3f", i ? "; " : "", k->name[i], 1e-6 * (double)k->raw[i],
               1e-6 * (double)k->stored[i]);
    printf("\n");
}

/* ==== peaks of memory ====================================================================== */

struct sk_watch {
    pthread_t thread;
    atomic_bool stop;
    uint64_t anon_bytes;
};

static uint64_t status_bytes(const char *field)
{
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0)
            sscanf(line + strlen(field), ": %llu", &kb);
    if (f)
        fclose(f);
    return kb * 1024;
}

static void *watch(void *ctx)
{
    sk_watch *w = ctx;
    const struct timespec pause = {0, 5000000};
    while (!atomic_load(&w->stop)) {
        uint64_t now = status_bytes("RssAnon");
        w->anon_bytes = FM_MAX(w->anon_bytes, now);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

sk_watch *sk_watch_begin(void)
{
    sk_watch *w = fm_calloc(1, sizeof *w);
    FILE *f = fopen("/proc/self/clear_refs", "w"); /* VmHWM starts anew */
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    if (pthread_create(&w->thread, NULL, watch, w) != 0) {
        fprintf(stderr, "no thread to watch the memory with\n");
        exit(1);
    }
    return w;
}

void sk_watch_end(sk_watch *w, uint64_t *anon_bytes, uint64_t *hwm_bytes)
{
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    *anon_bytes = w->anon_bytes;
    *hwm_bytes = status_bytes("VmHWM");
    fm_free(w);
}
