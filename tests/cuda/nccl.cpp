/* nccl.cpp - stands in for NCCL: the ten calls that infer/cuda/nccl.cu looks up, between
 * ranks that are threads of one process or processes of one machine, on the emulated GPUs'
 * streams.
 *
 * As NCCL's documentation has it: making a communicator waits for all ranks, each on a GPU of
 * its own; a group returns when it is queued and its calls go on independently, in the order of
 * the stream; between two ranks messages match in their order and have equal sizes; calls on a
 * stream that is captured become part of the graph, and each launch of it makes them anew: recorded
 * by both ranks together and run by both, or by none; what no peer matches never ends, and nobody
 * is told, until the communicator is aborted here; destroying waits for what was queued and for the
 * other ranks; neither returns while a graph has calls of the communicator. What NCCL leaves
 * undefined stops the program: other sizes, a recorded call that meets one which was not recorded
 * with it, a communicator that is gone, memory that is none of a GPU.
 *
 * SIMT_NCCL_FAULT=kind:rank:n, once: the nth of that rank. init: ncclCommInitRank fails. group:
 * ncclGroupEnd fails and queues nothing. mute: a group is queued (each launch of a graph counts)
 * and never moves. async: that, and ncclCommGetAsyncError tells of it. SIMT_NCCL_TOGETHER=1: an
 * abort returns when all ranks of the communicator are in one, as newer versions may. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define MOST 8
#define RING ((size_t)1 << 16)
#define LONG_MS 60000 /* what takes longer here will never end */
#define CALL extern "C" __attribute__((visibility("default")))

enum { SUCCESS = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
enum { INT8 = 0 };

struct unique_id {
    char internal[128];
};

struct head { /* of a message */
    uint64_t bytes;
    uint64_t graph; /* which of the recorded ones between the two it is, 0: none */
};

/* Bytes from one rank to another: each message is its head and its bytes. */
struct ring {
    std::atomic<uint64_t> in, out;
    char bytes[RING];
};

struct shared {
    std::atomic<int> joined, aborted, destroyed;
    std::atomic<int> card[MOST]; /* 1 + its number */
    ring way[MOST][MOST];
};

struct move {
    int peer;
    bool send;
    char *ptr;
    uint64_t done; /* the head included */
    head own, his; /* his: of a receive */
};

struct comm {
    int rank, size;
    shared *all;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{SUCCESS};
    std::atomic<uint64_t> queued{0}, ended{0};
    std::atomic<int> graphs{0};      /* that have calls of it */
    uint64_t recorded[2][MOST] = {}; /* messages of graphs that ran, by way and peer */
    ~comm()
    {
        munmap(all, sizeof *all);
    }
};
typedef std::shared_ptr<comm> comm_ref;

struct script { /* a group's calls on one stream; recorded: of a graph, else they run once */
    comm_ref of;
    std::vector<move> list;
    bool recorded, numbered;
};

struct task { /* of one run */
    comm_ref of;
    std::vector<move> list;
    script *of_graph; /* NULL: of none, or its messages have its numbers */
    bool mute;
};

struct pending {
    comm_ref of;
    void *stream;
    move m;
};

static std::mutex lock; /* of what follows */
static std::map<void *, comm_ref> comms;
static std::string fault;
/* The id that was made last, if by this process, and the fault under which it was. */
static std::string newest, newest_fault;
static unsigned long seen;
static thread_local int depth;
static thread_local std::vector<pending> group;

[[noreturn]] static void die(const char *what)
{
    fprintf(stderr, "nccl: %s\n", what);
    abort();
}

/* ==== the emulated GPUs ==== */

template <class F> static F card_symbol(const char *name)
{
    const char *module = getenv("FMSTORE_CUDA_MODULE");
    void *so = module ? dlopen(module, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *at = so ? dlsym(so, name) : NULL;
    if (!at)
        die("there is no emulated card in this program");
    F f;
    memcpy(&f, &at, sizeof f);
    return f;
}

static void share(void *stream, void *(*begin)(void *), bool (*run)(void *), void (*drop)(void *),
                  void *arg)
{
    static const auto f = card_symbol<void (*)(void *, void *(*)(void *), bool (*)(void *),
                                               void (*)(void *), void *)>("simt_share");
    f(stream, begin, run, drop, arg);
}

static bool captures(void *stream)
{
    static const auto f = card_symbol<bool (*)(void *)>("simt_captures");
    return f(stream);
}

static bool is_device(const void *p, size_t bytes)
{
    static const auto f = card_symbol<bool (*)(const void *, size_t)>("simt_is_device");
    return f(p, bytes);
}

static int this_card(void)
{
    static const auto f = card_symbol<int (*)(void)>("simt_card");
    return f();
}

/* ==== faults ==== */

static const char *fault_now(void)
{
    const char *text = getenv("SIMT_NCCL_FAULT");
    return text ? text : "";
}

/* Counts from when the variable was set. */
static bool strikes(const char *kind, int rank)
{
    const char *text = getenv("SIMT_NCCL_FAULT");
    char word[16] = "";
    int who = -1;
    unsigned long n = 0;
    std::lock_guard<std::mutex> g(lock);
    if (!text || fault != text) {
        fault = text ? text : "";
        seen = 0;
    }
    if (sscanf(fault.c_str(), "%15[^:]:%d:%lu", word, &who, &n) != 3)
        return false;
    return strcmp(word, kind) == 0 && who == rank && ++seen == n;
}

/* ==== communicators ==== */

static comm_ref find(void *handle)
{
    std::lock_guard<std::mutex> g(lock);
    auto it = comms.find(handle);
    if (it == comms.end())
        die("a communicator that is gone");
    return it->second;
}

static comm_ref take(void *handle)
{
    comm_ref c = find(handle);
    std::lock_guard<std::mutex> g(lock);
    comms.erase(handle);
    return c;
}

template <class F> static void wait_for(const char *what, F done)
{
    for (int ms = 0; !done(); ms++) {
        if (ms > LONG_MS)
            die(what);
        usleep(1000);
    }
}

CALL int ncclGetUniqueId(unique_id *id)
{
    int fd = memfd_create("nccl", MFD_CLOEXEC);
    memset(id, 0, sizeof *id);
    if (fd < 0 || ftruncate(fd, sizeof(shared)) != 0)
        return SYSTEM;
    snprintf(id->internal, sizeof id->internal, "%d %d", (int)getpid(), fd);
    std::lock_guard<std::mutex> g(lock);
    newest = id->internal;
    newest_fault = fault_now();
    return SUCCESS;
}

static shared *map_id(const unique_id &id, int *own)
{
    int pid = 0, fd = -1;
    char path[64];
    if (sscanf(id.internal, "%d %d", &pid, &fd) != 2)
        return NULL;
    *own = pid == (int)getpid() ? fd : -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int here = open(path, O_RDWR | O_CLOEXEC);
    void *p = here < 0 ? MAP_FAILED
                       : mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, here, 0);
    if (here >= 0)
        close(here);
    return p == MAP_FAILED ? NULL : (shared *)p;
}

/* A rank whose peers have given up before it began: nothing of its own is to strike it. */
static bool is_late(const unique_id &id)
{
    std::lock_guard<std::mutex> g(lock);
    return !newest.empty() && (newest != id.internal || newest_fault != fault_now());
}

CALL int ncclCommInitRank(void **out, int size, unique_id id, int rank)
{
    int own = -1;
    *out = NULL;
    if (size < 1 || size > MOST || rank < 0 || rank >= size)
        return ARGUMENT;
    if (!is_late(id) && strikes("init", rank))
        return SYSTEM;
    shared *all = map_id(id, &own);
    if (!all)
        return SYSTEM;
    all->card[rank] = 1 + this_card();
    all->joined++;
    while (all->joined < size) /* for ever */
        usleep(1000);
    if (own >= 0 && rank == 0)
        close(own);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < i; j++)
            if (all->card[i] == all->card[j]) {
                munmap(all, sizeof *all);
                return USAGE;
            }
    comm_ref c = std::make_shared<comm>();
    c->rank = rank;
    c->size = size;
    c->all = all;
    *out = c.get();
    std::lock_guard<std::mutex> g(lock);
    comms[c.get()] = c;
    return SUCCESS;
}

CALL int ncclCommGetAsyncError(void *handle, int *result)
{
    *result = find(handle)->error;
    return SUCCESS;
}

CALL int ncclCommAbort(void *handle)
{
    comm_ref c = take(handle);
    const char *together = getenv("SIMT_NCCL_TOGETHER");
    c->aborted = true;
    c->all->aborted++;
    wait_for("a communicator is aborted that a graph still has", [&] { return c->graphs == 0; });
    if (together && *together == '1')
        wait_for("an abort that not all ranks are in",
                 [&] { return c->all->aborted + c->all->destroyed >= c->size; });
    return SUCCESS;
}

CALL int ncclCommDestroy(void *handle)
{
    comm_ref c = take(handle);
    wait_for("a communicator is destroyed with something under way",
             [&] { return c->ended == c->queued; });
    wait_for("a communicator is destroyed that a graph still has", [&] { return c->graphs == 0; });
    c->all->destroyed++;
    wait_for("a communicator that not all ranks destroy",
             [&] { return c->all->aborted + c->all->destroyed >= c->size; });
    return SUCCESS;
}

CALL const char *ncclGetErrorString(int result)
{
    switch (result) {
    case SUCCESS:
        return "no error";
    case SYSTEM:
        return "unhandled system error";
    case INTERNAL:
        return "internal error";
    case ARGUMENT:
        return "invalid argument";
    case USAGE:
        return "invalid usage";
    case REMOTE:
        return "remote process exited or there was a network error";
    default:
        return "unknown result code";
    }
}

/* ==== moving ==== */

static uint64_t into(ring &r, const char *from, uint64_t bytes)
{
    uint64_t at = r.in, n = RING - (at - r.out);
    n = n < bytes ? n : bytes;
    for (uint64_t i = 0; i < n; i++)
        r.bytes[(at + i) % RING] = from[i];
    r.in = at + n;
    return n;
}

static uint64_t out_of(ring &r, char *to, uint64_t bytes)
{
    uint64_t at = r.out, n = r.in - at;
    n = n < bytes ? n : bytes;
    for (uint64_t i = 0; i < n; i++)
        to[i] = r.bytes[(at + i) % RING];
    r.out = at + n;
    return n;
}

/* True: all of it has gone. */
static bool go_on(comm &c, move &m)
{
    const uint64_t first = sizeof(head), all = first + m.own.bytes;
    ring &r = m.send ? c.all->way[c.rank][m.peer] : c.all->way[m.peer][c.rank];
    for (uint64_t n = 1; n > 0 && m.done < all; m.done += n) {
        char *at = (char *)(m.send ? &m.own : &m.his);
        char *p = m.done < first ? at + m.done : m.ptr + (m.done - first);
        uint64_t left = (m.done < first ? first : all) - m.done;
        n = m.send ? into(r, p, left) : out_of(r, p, left);
        if (m.send || m.done + n < first)
            continue;
        if (m.his.bytes != m.own.bytes)
            die("two ranks send and receive other sizes");
        if (m.his.graph != m.own.graph)
            die("what was recorded meets what was not recorded with it");
    }
    return m.done == all;
}

/* Which of the recorded messages between two ranks these are: both count them where they run for
 * the first time. */
static void number(comm &c, task &t)
{
    script &s = *t.of_graph;
    for (size_t i = 0; i < t.list.size(); i++) {
        head &h = s.list[i].own;
        if (!s.numbered)
            h.graph = ++c.recorded[s.list[i].send][s.list[i].peer];
        t.list[i].own = h;
    }
    s.numbered = true;
    t.of_graph = NULL;
}

static bool run(void *arg)
{
    task *t = (task *)arg;
    comm &c = *t->of;
    bool done = !t->mute, busy[2][MOST] = {{false}};
    if (t->of_graph)
        number(c, *t);
    for (move &m : t->list) {
        if (t->mute || c.aborted || busy[m.send][m.peer])
            continue;
        busy[m.send][m.peer] = !go_on(c, m);
        done = done && !busy[m.send][m.peer];
    }
    if (!done && !c.aborted)
        return false;
    c.ended++;
    delete t;
    return true;
}

static void *begin(void *arg)
{
    script *s = (script *)arg;
    comm &c = *s->of;
    bool async = strikes("async", c.rank);
    task *t = new task{s->of, s->list, s->recorded ? s : NULL, async || strikes("mute", c.rank)};
    c.queued++;
    if (async)
        c.error = REMOTE;
    return t;
}

static void drop(void *arg)
{
    script *s = (script *)arg;
    s->of->graphs -= s->recorded;
    delete s;
}

static int add(void *ptr, size_t count, int type, int peer, void *handle, void *stream, bool send)
{
    comm_ref c = find(handle);
    if (type != INT8 || peer < 0 || peer >= c->size || !is_device(ptr, count))
        return ARGUMENT;
    group.push_back({c, stream, {peer, send, (char *)ptr, 0, {count, 0}, {0, 0}}});
    return SUCCESS;
}

CALL int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

static int queue(script *s, void *stream)
{
    if (strikes("group", s->of->rank)) {
        delete s;
        return INTERNAL;
    }
    s->recorded = captures(stream);
    s->of->graphs += s->recorded;
    share(stream, begin, run, drop, s);
    return SUCCESS;
}

CALL int ncclGroupEnd(void)
{
    if (depth == 0)
        return USAGE;
    if (--depth > 0)
        return SUCCESS;
    std::vector<pending> list;
    list.swap(group);
    int result = SUCCESS;
    while (!list.empty() && result == SUCCESS) {
        const pending first = list.front();
        script *t = new script{first.of, {}, false, false};
        std::vector<pending> rest;
        for (const pending &p : list)
            if (p.of == first.of && p.stream == first.stream)
                t->list.push_back(p.m);
            else
                rest.push_back(p);
        list.swap(rest);
        result = queue(t, first.stream);
    }
    return result;
}

static int alone(int result)
{
    return depth == 0 && result == SUCCESS ? (depth++, ncclGroupEnd()) : result;
}

CALL int ncclSend(const void *x, size_t count, int type, int peer, void *comm, void *stream)
{
    return alone(add((void *)x, count, type, peer, comm, stream, true));
}

CALL int ncclRecv(void *x, size_t count, int type, int peer, void *comm, void *stream)
{
    return alone(add(x, count, type, peer, comm, stream, false));
}
