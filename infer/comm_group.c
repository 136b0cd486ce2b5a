/* comm_group.c - some ranks of a comm as a comm. It has no wire and no failure of its own: comm.c
 * renumbers its moves and hands them to the whole. So whatever is promised of sums holds in a group,
 * a rank's messages stay in one line whichever comm they are sent through, and what makes the whole
 * good again makes the group good. */
#include "infer/comm_wire.h"

static fm_status check(const fm_comm *c, const uint32_t *member, uint32_t n)
{
    bool good = n > 0 && n <= fm_comm_size(c), mine = false;
    for (uint32_t i = 0; good && i < n; i++) {
        good = member[i] < fm_comm_size(c) && (i == 0 || member[i] > member[i - 1]);
        mine = mine || member[i] == fm_comm_rank(c);
    }
    return good && mine ? FM_OK
                        : fm_fail(FM_EINVAL,
                                  "a group of %u of %u ranks: numbers ascend, and rank %u, which "
                                  "asks, is one of them",
                                  n, fm_comm_size(c), fm_comm_rank(c));
}

fm_status fm_comm_group(fm_comm **out, fm_comm *c, fm_backend *be, const uint32_t *member,
                        uint32_t n)
{
    *out = NULL;
    fm_status rc = check(c, member, n);
    return rc == FM_OK ? fm_comm_part(out, c, be, member, n) : rc;
}
