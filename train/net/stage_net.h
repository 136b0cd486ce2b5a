/* stage_net.h - the part of a net that a stage holds. */
#ifndef FM_TRAIN_STAGE_NET_H
#define FM_TRAIN_STAGE_NET_H

#include "train/net/internal.h"
#include "train/params/stage.h"

FM_BEGIN_DECLS

/* Drops modules of other stages from the net and places the parameters here; after all parameters
 * are declared and before memory is allocated. */
FM_CHECKED fm_status fmt_stage_keep(fmt_stage *s, fmt_net *net, fmt_params *ps);
/* Drops modules of other stages from a net of which nothing trains. */
void fmt_stage_leave(fmt_net *net);
/* Notes the stage of each parameter, and in ps->tied whether head and embedding train as one. */
void fmt_stage_note(const fmt_stage *s, const fmt_net *net, fmt_params *ps);
bool fmt_stage_ties(const fmt_net *net);

FM_END_DECLS
#endif
