/* checkpoint_kit.h - a checkpoints of one state in memory: what a test of resuming leans on. */
#ifndef FM_TESTS_KEEPER_KIT_H
#define FM_TESTS_KEEPER_KIT_H

#include <string.h>

#include "tests/testkit.h"
#include "train/train.h"

typedef struct kit_checkpoints {
    fm_train_state kept; /* tensors NULL: none */
    unsigned saves;
    fm_train_checkpoints checkpoints; /* for the job */
} kit_checkpoints;

static fm_status kit_copy_state(fm_train_state *to, const fm_train_state *s)
{
    *to = *s;
    to->log = fm_json_copy(s->log);
    to->tensors = fm_calloc(s->count, sizeof(*to->tensors));
    assert_non_null(to->tensors);
    for (size_t i = 0; i < s->count; i++) {
        to->tensors[i] = s->tensors[i];
        to->tensors[i].name = fm_strdup(s->tensors[i].name);
        to->tensors[i].data = fm_malloc((size_t)s->tensors[i].bytes);
        assert_non_null(to->tensors[i].data);
        memcpy(to->tensors[i].data, s->tensors[i].data, (size_t)s->tensors[i].bytes);
    }
    return FM_OK;
}

static fm_status kit_checkpoints_save(void *ctx, uint32_t child, const fm_train_state *s)
{
    kit_checkpoints *k = ctx;
    (void)child;
    fm_train_state_release(&k->kept);
    k->saves++;
    return kit_copy_state(&k->kept, s);
}

static fm_status kit_checkpoints_load(void *ctx, uint32_t child, const fm_digest *run,
                                      fm_train_state *out, bool *found)
{
    kit_checkpoints *k = ctx;
    (void)child;
    *found = k->kept.tensors && memcmp(k->kept.run.b, run->b, sizeof(run->b)) == 0;
    return *found ? kit_copy_state(out, &k->kept) : FM_OK;
}

static const fm_train_checkpoints *kit_checkpoints_init(kit_checkpoints *k)
{
    memset(k, 0, sizeof(*k));
    k->checkpoints = (fm_train_checkpoints){
        .ctx = k, .save = kit_checkpoints_save, .load = kit_checkpoints_load};
    return &k->checkpoints;
}

#endif
