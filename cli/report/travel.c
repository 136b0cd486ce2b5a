/* travel.c - says what travelled. */
#include "cli/report/travel.h"

void report_travel(const fm_travel *t, bool dry_run, bool lineage_only)
{
    if (lineage_only) {
        fprintf(stderr, "lineage alone: %s on the wire\n", out_bytes(t->wire_in + t->wire_out));
        return;
    }
    fprintf(stderr, "%llu objects, %s%s; %s on the wire\n", (unsigned long long)t->objects,
            out_bytes(t->bytes), dry_run ? " would travel" : "",
            out_bytes(t->wire_in + t->wire_out));
}
