/* ranks_leader.h - ranks keep in step: rank 0 tells the others what its engine is asked. All of it
 * costs nothing with one rank. */
#ifndef FM_INFER_RANKS_LEADER_H
#define FM_INFER_RANKS_LEADER_H

#include "infer/engine/engine.h"

FM_BEGIN_DECLS

/* After be, opts and comm are set: checks that the ranks were made alike. */
FM_CHECKED fm_status fmi_mirror_new(fm_engine *e);
void fmi_mirror_free(fm_engine *e); /* the leader's: the others end */
/* Remembers what the others need to make this model. */
FM_CHECKED fm_status fmi_mirror_prepare(fm_model *m, const fm_tree *tree, const char *what);
/* The leader's model is adopted: all make it; rc is the worst of all. */
FM_CHECKED fm_status fmi_mirror_adopt(fm_model *m);
void fmi_mirror_close(fm_model *m);
/* Before a step, when it is planned (rc: how that went) and, where the first was FM_OK, behind it
 * with what became of it here: returns what became of it on all. */
FM_CHECKED fm_status fmi_mirror_step(fm_engine *e, const fm_row *rows, uint32_t n);
FM_CHECKED fm_status fmi_mirror_planned(fmi_step *s, uint32_t n, fm_status rc);
FM_CHECKED fm_status fmi_mirror_end(fm_engine *e, fm_status rc);
void fmi_mirror_undone(fm_engine *e); /* behind a step that failed */
/* Before a sequence opens and, where that was FM_OK, behind it: *s is closed and NULL where it
 * failed elsewhere. */
FM_CHECKED fm_status fmi_mirror_open(fm_model *m);
FM_CHECKED fm_status fmi_mirror_opened(fm_model *m, fm_seq **s, fm_status rc);
typedef enum fmi_deed {
    FMI_DEED_EXPECT,
    FMI_DEED_TELL,
    FMI_DEED_WANT,
    FMI_DEED_ADOPT,
    FMI_DEED_RESERVE,
    FMI_DEED_REWIND,
    FMI_DEED_CLOSE,
    FMI_DEED_UNCACHE
} fmi_deed;
/* What happens to a sequence between steps. */
void fmi_mirror_deed(fm_seq *s, fmi_deed deed, uint32_t a, int32_t b);

FM_END_DECLS
#endif
