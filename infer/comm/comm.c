/* comm.c - ranks of one computation: which wire carries what, how failures are shared (sums:
 * sums.c). */
#include "infer/comm/comm_core.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "infer/backend.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define NODE_BYTES 64u
#define TELL_MAX (1ull << 30)

_Static_assert(sizeof(fmi_word) <= FM_WORD_BYTES, "a word to all");

/* ==== life ==== */

/* Ranks with the same node name form one node. */
static fm_status find_nodes(fm_comm *c, const char *node)
{
    char mine[NODE_BYTES] = {0};
    if (node)
        (void)snprintf(mine, sizeof(mine), "%s", node);
    else if (gethostname(mine, sizeof(mine) - 1) != 0)
        return fm_fail(FM_EIO, "this machine does not tell its name");
    char *all = fm_calloc(c->size, NODE_BYTES);
    if (!all)
        return FM_ENOMEM;
    fm_status rc = fm_comm_collect(c, all, mine, NODE_BYTES);
    for (uint32_t i = 0; rc == FM_OK && i < c->size; i++) {
        uint32_t j = 0;
        while (memcmp(all + (size_t)j * NODE_BYTES, all + (size_t)i * NODE_BYTES, NODE_BYTES) != 0)
            j++;
        c->node[i] = j < i ? c->node[j] : c->nodes++;
    }
    fm_free(all);
    return rc;
}

fm_status fm_comm_new(fm_comm **out, fm_wire *wire, const char *node)
{
    *out = NULL;
    fm_comm *c = fm_calloc(1, sizeof(*c));
    if (!c || (wire && wire->size > FM_COMM_MAX_RANKS)) {
        uint32_t size = wire ? wire->size : 0;
        if (wire)
            wire->close(wire);
        fm_free(c);
        return !c ? FM_ENOMEM
                  : fm_fail(FM_ELIMIT, "%u ranks, at most %u are possible", size,
                            FM_COMM_MAX_RANKS);
    }
    (void)pthread_mutex_init(&c->host, NULL);
    c->wire = wire;
    c->size = wire ? wire->size : 1;
    c->rank = wire ? wire->rank : 0;
    c->move = fm_calloc(2 * (size_t)c->size, sizeof(*c->move));
    c->said = fm_calloc(c->size, sizeof(*c->said));
    fm_status rc = c->move && c->said ? find_nodes(c, node) : FM_ENOMEM;
    if (rc != FM_OK) {
        fm_comm_free(c);
        return rc;
    }
    *out = c;
    return FM_OK;
}

static fm_status check_members(const fm_comm *c, const uint32_t *member, uint32_t n)
{
    bool good = n > 0 && n <= c->size, mine = false;
    for (uint32_t i = 0; good && i < n; i++) {
        good = member[i] < c->size && (i == 0 || member[i] > member[i - 1]);
        mine = mine || member[i] == c->rank;
    }
    return good && mine ? FM_OK
                        : fm_fail(FM_EINVAL,
                                  "a group of %u of %u ranks: numbers ascend, and rank %u, which "
                                  "asks, is one of them",
                                  n, c->size, c->rank);
}

fm_status fm_comm_group(fm_comm **out, fm_comm *c, fm_backend *be, const uint32_t *member,
                        uint32_t n)
{
    *out = NULL;
    fm_assert(!c->of);
    fm_status rc = check_members(c, member, n);
    fm_comm *g = rc == FM_OK ? fm_calloc(1, sizeof(*g)) : NULL;
    if (!g)
        return rc != FM_OK ? rc : FM_ENOMEM;
    (void)pthread_mutex_init(&g->host, NULL);
    g->of = c;
    g->be = be;
    g->size = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = 0;
        g->member[i] = member[i];
        g->rank = member[i] == c->rank ? i : g->rank;
        while (c->node[member[j]] != c->node[member[i]])
            j++;
        g->node[i] = j < i ? g->node[j] : g->nodes++;
    }
    g->move = fm_calloc(2 * (size_t)n, sizeof(*g->move));
    if (!g->move) {
        fm_comm_free(g);
        return FM_ENOMEM;
    }
    *out = g;
    return FM_OK;
}

void fm_comm_free(fm_comm *c)
{
    if (!c)
        return;
    fm_comm_detach(c);
    if (c->wire)
        c->wire->close(c->wire);
    (void)pthread_mutex_destroy(&c->host);
    fm_free(c->stage);
    fm_free(c->move);
    fm_free(c->said);
    fm_free(c);
}

/* Closes the device wire, also one that was given up. */
static void drop_device(fm_comm *c)
{
    if (c->device)
        c->device->let_go(c->device); /* the watch may be in an abort that waits for it */
    fm_watch_free(c->watch);
    c->watch = NULL;
    if (c->device)
        c->device->close(c->device);
    c->age++;
    c->device = NULL;
    c->queued = c->arrived = 0;
    memset(&c->ledger, 0, sizeof(c->ledger));
    c->hangs = false;
}

void fm_comm_detach(fm_comm *c)
{
    drop_device(c);
    if (c->room)
        c->be->free(c->be, c->room);
    c->room = NULL;
    c->room_floats = 0;
    c->be = NULL;
}

fm_status fm_comm_attach(fm_comm *c, fm_backend *be, fm_wire *device)
{
    fm_comm_detach(c);
    c->be = be;
    c->device = device;
    c->attach_anew = NULL;
    fm_status rc = device ? fm_watch_new(&c->watch, c->wire, device, &c->host) : FM_OK;
    if (rc != FM_OK)
        drop_device(c);
    return rc;
}

uint32_t fm_comm_rank(const fm_comm *c)
{
    return c ? c->rank : 0;
}

uint32_t fm_comm_size(const fm_comm *c)
{
    return c ? c->size : 1;
}

static const fm_comm *whole(const fm_comm *c)
{
    return c->of ? c->of : c;
}

const char *fm_comm_wire(const fm_comm *c)
{
    c = whole(c);
    return c->device ? c->device->name : c->wire ? c->wire->name : "none";
}

bool fm_comm_device_wire(const fm_comm *c)
{
    return c && whole(c)->device;
}

bool fm_comm_compares(const fm_comm *c)
{
    return c && (whole(c)->device || (whole(c)->wire && !whole(c)->wire->sized));
}

uint32_t fm_comm_nodes(const fm_comm *c)
{
    return c->nodes;
}

uint32_t fm_comm_node(const fm_comm *c, uint32_t rank)
{
    return rank < c->size ? c->node[rank] : 0;
}

fm_comm_stats fm_comm_stats_of(const fm_comm *c)
{
    return whole(c)->stats;
}

/* A permanent failure: every later call returns it. */
static fm_status stick(fm_comm *c, fm_status rc, const char *what)
{
    if (c->of)
        c = c->of;
    rc = fm_error_prefix(rc, "rank %u of %u, %s", c->rank, c->size, what);
    c->failed = rc;
    c->broken = false;
    fm_error_save(&c->why);
    if (c->device) {
        c->device->let_go(c->device);
        c->device->give_up(c->device);
    }
    return rc;
}

static fm_status stuck(const fm_comm *c)
{
    fm_error_restore(&c->why);
    return c->failed;
}

static fm_status state_of(const fm_comm *c)
{
    c = whole(c);
    return c->failed != FM_OK ? stuck(c) : FM_OK;
}

void fm_comm_step_timeout(fm_comm *c, double seconds)
{
    if (c->of)
        c = c->of;
    (void)pthread_mutex_lock(&c->host); /* the watch reads it */
    if (c->wire)
        c->wire->step_timeout_s = seconds;
    (void)pthread_mutex_unlock(&c->host);
}

double fm_comm_step_timeout_of(const fm_comm *c)
{
    c = whole(c);
    return c->wire ? c->wire->step_timeout_s : 0.0;
}

fm_status fm_comm_state(const fm_comm *c)
{
    return c ? state_of(c) : FM_OK;
}

/* ==== a failure of one rank alone ==== */

static void say(fmi_word *w, fm_status mine)
{
    memset(w, 0, sizeof(*w));
    w->status = mine;
    if (mine == FM_ENOMEM && !strstr(fm_error_text(), "memory")) /* an older text */
        fm_ignore(fm_fail(mine, "out of memory"), "its text was wanted");
    if (mine != FM_OK)
        (void)snprintf(w->text, sizeof(w->text), "%s", fm_error_text());
}

/* The worst of all ranks' status messages, the same on each rank. */
static fm_status hear(const fm_comm *c, fm_status mine)
{
    fmi_word *all = c->said;
    uint32_t worst = 0;
    for (uint32_t i = 1; i < c->size; i++)
        if (all[i].status < all[worst].status)
            worst = i;
    all[worst].text[FMI_WORD_TEXT - 1] = '\0';
    if (all[worst].status == FM_OK)
        return FM_OK;
    if (worst == c->rank)
        return fm_fail(mine, "%s", all[worst].text);
    return fm_fail((fm_status)all[worst].status, "rank %u: %s", worst, all[worst].text);
}

/* This rank leaves the common work with the failure `mine`, or with FM_OK because another rank has
 * left. The device's wire is kept where every send that was queued has its receive. */
static fm_status break_off(fm_comm *c, fm_status mine)
{
    fmi_word own, *all = c->said;
    bool done = true;
    say(&own, mine);
    own.unmet = c->ledger.unmet;
    own.device_fails = c->device && (c->hangs || c->device->settled(c->device, &done) != FM_OK);
    (void)pthread_mutex_lock(&c->host);
    own.device_fails = own.device_fails || (c->watch && fm_watch_gave_up(c->watch));
    fm_status rc = c->wire->break_off(c->wire, &own, all, sizeof(own));
    if (c->watch) /* nothing is under way; under the lock, so that the watch sees it */
        fm_watch_queued(c->watch, false);
    (void)pthread_mutex_unlock(&c->host);
    bool keeps = rc == FM_OK;
    uint64_t unmet = 0;
    for (uint32_t i = 0; i < c->size && keeps; i++) {
        unmet += all[i].unmet;
        keeps = !all[i].device_fails;
    }
    if (rc == FM_OK) {
        c->anew = c->device && (!keeps || unmet != 0);
        if (c->anew)
            drop_device(c);
        rc = hear(c, mine);
        if (rc == FM_OK) /* each rank followed another one, and none failed */
            rc = fm_fail(FM_ECORRUPT, "the ranks broke off, and none says why");
        c->failed = rc;
        c->broken = true;
        fm_error_save(&c->why);
    } else {
        rc = stick(c, rc, "breaking off");
    }
    return rc;
}

fm_status fmi_comm_leave(fm_comm *c, fm_status mine, const char *what)
{
    mine = fm_error_prefix(mine, "%s", what);
    if (c->of)
        c = c->of;
    return c->size > 1 ? break_off(c, mine) : mine;
}

bool fm_comm_called(fm_comm *c)
{
    (void)pthread_mutex_lock(&c->host);
    bool called = c->wire && c->wire->called(c->wire);
    (void)pthread_mutex_unlock(&c->host);
    return called;
}

fm_status fmi_comm_device_fails(fm_comm *c, fm_status mine, const char *what)
{
    return fm_comm_called(c) ? break_off(c, FM_OK) : fmi_comm_leave(c, mine, what);
}

static fm_status host_exchange(fm_comm *c, const char *what, const fm_move *list, uint32_t n)
{
    double began = fm_now_s();
    c->stats.calls++;
    for (uint32_t i = 0; i < n; i++)
        *(list[i].send ? &c->stats.bytes_sent : &c->stats.bytes_received) += list[i].bytes;
    (void)pthread_mutex_lock(&c->host);
    fm_status rc = c->wire->exchange(c->wire, list, n);
    (void)pthread_mutex_unlock(&c->host);
    c->stats.waited_s += fm_now_s() - began;
    if (rc == FM_OK)
        return FM_OK;
    if (c->wire->broken)
        return break_off(c, FM_OK);
    return c->wire->differs ? fmi_comm_leave(c, rc, what) : stick(c, rc, what);
}

/* Compares `same` over all ranks. Where it differs, messages still on their way may not match
 * either: every rank sees the difference, and every rank breaks off. */
static void meet_words(fm_comm *c, uint64_t same)
{
    uint64_t all[FM_COMM_MAX_RANKS];
    uint32_t i = 1;
    if (fm_comm_collect(c, all, &same, sizeof(same)) != FM_OK)
        return;
    while (i < c->size && all[i] == all[0])
        i++;
    if (i == c->size)
        return;
    fm_status rc = fm_fail(FM_ECORRUPT, "rank %u did something else than rank 0", i);
    fm_ignore(break_off(c, rc), "it is kept");
}

fm_status fm_comm_meet(fm_comm *c, fm_status mine, uint64_t same)
{
    if (fm_comm_size(c) <= 1)
        return mine;
    if (c->failed == FM_OK && mine != FM_OK)
        fm_ignore(break_off(c, mine), "it is kept");
    if (c->failed == FM_OK)
        meet_words(c, same);
    if (c->failed == FM_OK)
        return FM_OK;
    if (c->broken) {
        fm_status rc;
        fm_backend *be = c->be;
        bool anew = c->anew;
        fm_error_state why = c->why;
        rc = c->failed;
        c->broken = c->anew = false;
        c->failed = FM_OK;
        fm_status made = FM_OK;
        if (anew)
            made = c->attach_anew ? c->attach_anew(c, be) : fm_comm_attach(c, be, NULL);
        if (made != FM_OK)
            return c->failed != FM_OK ? stuck(c) : stick(c, made, "the devices' wire, made anew");
        fm_error_restore(&why);
        return rc;
    }
    return stuck(c);
}

/* ==== moving ==== */

/* The comm whose wires carry c->move; the moves of a group are renumbered to ranks of that comm. */
static fm_comm *carrier(fm_comm *c, uint32_t n)
{
    for (uint32_t i = 0; c->of && i < n; i++)
        c->move[i].peer = c->member[c->move[i].peer];
    return c->of ? c->of : c;
}

static fm_status host_moves(fm_comm *c, const char *what, const fm_move *list, uint32_t n)
{
    c = carrier(c, n);
    fm_status state = state_of(c);
    if (state != FM_OK)
        return state;
    if (n == 0)
        return FM_OK;
    FM_TRY(fm_comm_settle(c)); /* watch.c relies on it */
    return host_exchange(c, what, list, n);
}

static fm_status stage_room(fm_comm *c, size_t bytes)
{
    if (bytes <= c->stage_bytes)
        return FM_OK;
    fm_free(c->stage);
    c->stage_bytes = 0;
    c->stage = fm_aligned_alloc(64, bytes);
    if (!c->stage)
        return FM_ENOMEM;
    c->stage_bytes = bytes;
    return FM_OK;
}

/* Moves through host memory: download, exchange over the host's wire, upload. */
static fm_status staged_moves(fm_comm *c, const char *what, const fm_move *list, uint32_t n)
{
    fm_backend *be = c->be;
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += (list[i].bytes + 63) & ~(size_t)63;
    fm_move *host = fm_calloc(n, sizeof(*host));
    fm_status rc = host ? stage_room(c, bytes) : FM_ENOMEM;
    uint8_t *at = c->stage;
    for (uint32_t i = 0; i < n && rc == FM_OK; i++) {
        host[i] = list[i];
        host[i].ptr = at;
        at += (list[i].bytes + 63) & ~(size_t)63;
        if (list[i].send)
            rc = be->download(be, host[i].ptr, list[i].ptr, list[i].bytes);
    }
    if (rc != FM_OK) {
        fm_free(host);
        return fmi_comm_leave(c, rc, what);
    }
    rc = host_exchange(c, what, host, n);
    for (uint32_t i = 0; i < n && rc == FM_OK; i++)
        if (!list[i].send) {
            rc = be->upload(be, list[i].ptr, host[i].ptr, list[i].bytes);
            rc = rc == FM_OK ? rc : fmi_comm_leave(c, rc, what);
        }
    fm_free(host);
    return rc;
}

fm_status fmi_comm_moves(fm_comm *c, const char *what, uint32_t n)
{
    const fm_move *list = c->move;
    c = carrier(c, n);
    fm_status state = state_of(c);
    if (state != FM_OK)
        return state;
    if (n == 0)
        return FM_OK;
    fm_assert(c->be);
    if (c->script) {
        fm_status rc = c->device->exchange(c->device, list, n);
        return rc == FM_OK ? fm_script_note(c->script, list, n)
                           : fmi_comm_device_fails(c, rc, what);
    }
    if (c->device) {
        c->stats.calls++;
        for (uint32_t i = 0; i < n; i++)
            *(list[i].send ? &c->stats.bytes_sent : &c->stats.bytes_received) += list[i].bytes;
        fm_watch_queued(c->watch, true);
        fm_status rc = c->device->exchange(c->device, list, n);
        if (rc != FM_OK)
            return fmi_comm_device_fails(c, rc, what);
        fm_ledger_enter(&c->ledger, c->rank, list, n);
        c->queued++;
        return FM_OK;
    }
    if (!c->be->host_visible)
        return staged_moves(c, what, list, n);
    fm_status rc = c->be->sync(c->be);
    return rc == FM_OK ? host_exchange(c, what, list, n) : fmi_comm_leave(c, rc, what);
}

void fmi_comm_put(fm_comm *c, uint32_t *count, uint32_t peer, bool send, const void *x,
                  uint64_t bytes)
{
    if (bytes > 0 && peer != c->rank)
        c->move[(*count)++] = (fm_move){peer, send, (void *)(uintptr_t)x, (size_t)bytes};
}

/* ==== the rest ==== */

static uint32_t spread(fm_comm *c, void *x, size_t bytes, uint32_t root)
{
    uint32_t moves = 0;
    fm_assert(root < c->size);
    for (uint32_t i = 0; c->rank == root && i < c->size; i++)
        fmi_comm_put(c, &moves, i, true, x, bytes);
    fmi_comm_put(c, &moves, root, false, x, bytes);
    return moves;
}

fm_status fm_comm_broadcast(fm_comm *c, void *x, size_t bytes, uint32_t root)
{
    return fmi_comm_moves(c, "broadcast", spread(c, x, bytes, root));
}

fm_status fm_comm_send(fm_comm *c, const void *x, size_t bytes, uint32_t to)
{
    uint32_t moves = 0;
    fmi_comm_put(c, &moves, to, true, x, bytes);
    return fmi_comm_moves(c, "send", moves);
}

fm_status fm_comm_recv(fm_comm *c, void *x, size_t bytes, uint32_t from)
{
    uint32_t moves = 0;
    fmi_comm_put(c, &moves, from, false, x, bytes);
    return fmi_comm_moves(c, "recv", moves);
}

static uint32_t all_to_all(fm_comm *c, const void *const *part, const size_t *bytes,
                           void *const *got, const size_t *got_bytes)
{
    uint32_t moves = 0;
    for (uint32_t i = 0; i < c->size; i++) {
        fmi_comm_put(c, &moves, i, true, part[i], bytes[i]);
        fmi_comm_put(c, &moves, i, false, got[i], got_bytes[i]);
    }
    return moves;
}

fm_status fm_comm_exchange(fm_comm *c, const void *const *part, const size_t *bytes,
                           void *const *got, const size_t *got_bytes)
{
    return fmi_comm_moves(c, "exchange", all_to_all(c, part, bytes, got, got_bytes));
}

fm_status fm_comm_exchange_host(fm_comm *c, const void *const *part, const size_t *bytes,
                                void *const *got, const size_t *got_bytes)
{
    return host_moves(c, "exchange", c->move, all_to_all(c, part, bytes, got, got_bytes));
}

fm_status fm_comm_settle(fm_comm *c)
{
    if (c->of)
        c = c->of;
    const struct timespec nap = {.tv_nsec = 20000};
    bool done = !c->device || c->queued == c->arrived;
    double began = done ? 0.0 : fm_now_s();
    fm_status state = state_of(c);
    if (state != FM_OK)
        return state;
    for (uint32_t looks = 0; !done; looks++) {
        fm_status rc = c->device->settled(c->device, &done);
        if (rc != FM_OK)
            return fmi_comm_device_fails(c, rc, "waiting for the device");
        if (!done && looks % 1024 == 0 && fm_comm_called(c))
            return break_off(c, FM_OK);
        c->hangs =
            !done && c->wire->step_timeout_s > 0.0 && fm_now_s() - began > c->wire->step_timeout_s;
        if (c->hangs) {
            rc = fm_fail(FM_EIO, "an exchange does not end in %.0f s", c->wire->step_timeout_s);
            return fmi_comm_leave(c, rc, "waiting for the device");
        }
        if (!done && looks > 100)
            (void)nanosleep(&nap, NULL);
    }
    if (c->device && c->queued != c->arrived)
        fm_watch_queued(c->watch, false);
    c->arrived = c->queued;
    return FM_OK;
}

fm_status fm_comm_check(fm_comm *c)
{
    if (c->of)
        c = c->of;
    fm_status state = state_of(c);
    if (state != FM_OK)
        return state;
    fm_status rc = c->wire ? c->wire->alive(c->wire) : FM_OK;
    return rc == FM_OK ? rc : stick(c, rc, "between two steps");
}

fm_status fm_comm_tell(fm_comm *c, void *x, size_t bytes, uint32_t root)
{
    return host_moves(c, "tell", c->move, spread(c, x, bytes, root));
}

fm_status fm_comm_tell_buf(fm_comm *c, fm_buf *b, uint32_t root)
{
    uint64_t len = b->len;
    fm_status rc = fm_comm_tell(c, &len, sizeof(len), root);
    if (rc == FM_OK && len > TELL_MAX)
        rc = stick(c, fm_fail(FM_ELIMIT, "a message of %llu bytes", (unsigned long long)len),
                   "tell");
    if (rc != FM_OK || c->rank == root)
        return rc == FM_OK ? fm_comm_tell(c, b->data, (size_t)len, root) : rc;
    fm_buf_clear(b); /* keeps its memory, which mostly suffices */
    void *to = fm_buf_extend(b, (size_t)len);
    if (len > 0 && !to)
        return fmi_comm_leave(c, fm_buf_ok(b), "tell");
    rc = fm_comm_tell(c, to, (size_t)len, root);
    if (rc != FM_OK)
        fm_buf_clear(b);
    return rc;
}

fm_status fm_comm_collect(fm_comm *c, void *out, const void *mine, size_t bytes)
{
    uint32_t moves = 0;
    uint8_t *to = out;
    fm_status state = state_of(c);
    if (state != FM_OK)
        return state;
    memmove(to + bytes * c->rank, mine, bytes);
    for (uint32_t i = 0; i < c->size; i++) {
        fmi_comm_put(c, &moves, i, true, to + bytes * c->rank, bytes);
        fmi_comm_put(c, &moves, i, false, to + bytes * i, bytes);
    }
    return host_moves(c, "collect", c->move, moves);
}

fm_status fm_comm_barrier(fm_comm *c)
{
    uint8_t here = 1, all[FM_COMM_MAX_RANKS];
    return fm_comm_collect(c, all, &here, 1);
}

fm_status fm_comm_agree(fm_comm *c, fm_status mine)
{
    fmi_word own;
    say(&own, mine);
    FM_TRY(fm_comm_collect(c, c->said, &own, sizeof(own)));
    return hear(c, mine);
}
