/* stage_net.h - what of a net a stage holds. */
#ifndef FM_TRAIN_STAGE_NET_H
#define FM_TRAIN_STAGE_NET_H

#include "train/net/internal.h"
#include "train/params/stage.h"

FM_BEGIN_DECLS

/* Once all that trains is declared, and before memory: modules of other stages leave the net, and
 * the parameters get their places here. */
FM_CHECKED fm_status fmt_stage_keep(fmt_stage *s, fmt_net *net, fmt_params *ps);
/* Modules of other stages leave a net of which nothing trains. */
void fmt_stage_leave(fmt_net *net);
/* Which stage each parameter belongs to; whether head and embedding train as one. */
void fmt_stage_note(const fmt_stage *s, const fmt_net *net, fmt_params *ps);
bool fmt_stage_ties(const fmt_net *net);

FM_END_DECLS
#endif
