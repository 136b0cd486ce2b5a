/* record.c - replays exchanges that a backend recorded: the counters that comm.c keeps for each
 * exchange are advanced for all exchanges of the recording at once. */
#include "infer/backend.h"
#include "infer/comm/comm_core.h"

static fm_comm *carrier(fm_comm *c)
{
    return c->of ? c->of : c;
}

void fm_comm_record(fm_comm *c, fm_script *to)
{
    fm_assert(!to || carrier(c)->device);
    carrier(c)->script = to;
}

fm_status fm_comm_replay(fm_comm *c, const fm_script *s, uint64_t key)
{
    bool done;
    c = carrier(c);
    FM_TRY(fm_comm_state(c));
    fm_assert(c->device);
    fm_status rc = c->device->settled(c->device, &done); /* whether the wire still works */
    if (rc != FM_OK)
        return fmi_comm_device_fails(c, rc, "a recorded step");
    fm_watch_queued(c->watch, true); /* the host may block below */
    FM_TRY(c->be->replay(c->be, key));
    c->stats.calls += s->calls;
    c->stats.bytes_sent += s->sent_bytes;
    c->stats.bytes_received += s->received_bytes;
    fm_ledger_enter(&c->ledger, c->rank, s->list, s->n);
    c->queued++;
    rc = c->device->launched(c->device);
    return rc == FM_OK ? FM_OK : fmi_comm_device_fails(c, rc, "a recorded step");
}

uint64_t fm_comm_age(const fm_comm *c)
{
    return c->of ? c->of->age : c->age;
}

const void *fm_comm_room(const fm_comm *c)
{
    return c->room;
}
