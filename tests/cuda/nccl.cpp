/* nccl.cpp - stands in for NCCL: the ten calls that infer/cuda/comm_nccl.cu looks up, between
 * ranks that are threads of one process or processes of one machine, on the emulated cards'
 * streams.
 *
 * As NCCL's documentation has it: making a communicator waits for all ranks, each on a card of
 * its own; a group returns when it is queued and its calls go on independently, in the order of
 * the stream; between two ranks messages match in their order and have equal sizes; what no peer
 * matches never ends, and nobody is told, until the communicator is aborted here; destroying
 * waits for what was queued and for the other ranks. What NCCL leaves undefined stops the
 * program: other sizes, a communicator that is gone, memory that is none of a card.
 *
 * SIMT_NCCL_FAULT=kind:rank:n, once: the nth of that rank. init: ncclCommInitRank fails. group:
 * ncclGroupEnd fails and queues nothing. mute: a group is queued and never moves. async: that,
 * and ncclCommGetAsyncError tells of it. SIMT_NCCL_TOGETHER=1: an abort returns when all ranks
 * of the communicator are in one, as newer versions may. */
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

/* Bytes from one rank to another: each message is its size and its bytes. */
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
    uint64_t bytes, done; /* done: the size before them included */
    uint64_t head;        /* of a receive */
};

struct comm {
    int rank, size;
    shared *all;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{SUCCESS};
    std::atomic<uint64_t> queued{0}, ended{0};
    ~comm()
    {
        munmap(all, sizeof *all);
    }
};
typedef std::shared_ptr<comm> comm_ref;

struct task { /* a group's calls on one stream */
    comm_ref of;
    std::vector<move> list;
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
static std::string newest, newest_fault; /* the id that was made last, if by this process, and under which */
static unsigned long seen;
static thread_local int depth;
static thread_local std::vector<pending> group;

[[noreturn]] static void die(const char *what)
{
    fprintf(stderr, "nccl: %s\n", what);
    abort();
}

/* ==== the emulated cards ==== */

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

static int share(void *stream, bool (*run)(void *), void *arg)
{
    static const auto f = card_symbol<int (*)(void *, bool (*)(void *), void *)>("simt_share");
    return f(stream, run, arg);
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
    ring &r = m.send ? c.all->way[c.rank][m.peer] : c.all->way[m.peer][c.rank];
    for (uint64_t n = 1; n > 0 && m.done < sizeof m.head + m.bytes; m.done += n) {
        bool head = m.done < sizeof m.head;
        char *p = head ? (char *)&m.head + m.done : m.ptr + (m.done - sizeof m.head);
        uint64_t left = (head ? 0 : m.bytes) + sizeof m.head - m.done;
        n = m.send ? into(r, p, left) : out_of(r, p, left);
        if (m.done + n >= sizeof m.head && m.head != m.bytes)
            die("two ranks send and receive other sizes");
    }
    return m.done == sizeof m.head + m.bytes;
}

static bool run(void *arg)
{
    task *t = (task *)arg;
    comm &c = *t->of;
    bool done = !t->mute, busy[2][MOST] = {{false}};
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

static int add(void *ptr, size_t count, int type, int peer, void *handle, void *stream, bool send)
{
    comm_ref c = find(handle);
    if (type != INT8 || peer < 0 || peer >= c->size || !is_device(ptr, count))
        return ARGUMENT;
    group.push_back({c, stream, {peer, send, (char *)ptr, count, 0, send ? count : 0}});
    return SUCCESS;
}

CALL int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

static int queue(task *t, void *stream)
{
    comm &c = *t->of;
    if (strikes("group", c.rank)) {
        delete t;
        return INTERNAL;
    }
    bool async = strikes("async", c.rank);
    t->mute = async || strikes("mute", c.rank);
    c.queued++;
    if (share(stream, run, t) != 0)
        die("a stream that is recorded");
    if (async)
        c.error = REMOTE;
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
        task *t = new task{first.of, {}, false};
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
