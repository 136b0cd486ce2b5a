/* stage_net.h - what of a net a stage holds. */
#ifndef FM_TRAIN_STAGE_NET_H
#define FM_TRAIN_STAGE_NET_H

#include "train/net/internal.h"
#include "train/params/stage.h"

FM_BEGIN_DECLS

/* Once all that trains is declared, and before memory: modules of other stages leave the net, and
 * the parameters get their places here. */
FM_CHECKED fm_status fmi_stage_keep(fmi_stage *s, fmi_net *net, fmi_params *ps);
/* Modules of other stages leave a net of which nothing trains. */
void fmi_stage_leave(fmi_net *net);
/* Which stage each parameter belongs to; whether head and embedding train as one. */
void fmi_stage_note(const fmi_stage *s, const fmi_net *net, fmi_params *ps);
bool fmi_stage_ties(const fmi_net *net);

FM_END_DECLS
#endif
