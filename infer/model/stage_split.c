/* stage_split.c - see stage_split.h. The smallest possible maximum is found by halves: a limit is
 * possible if, filling stages from the last one, every layer finds a place. Then the same for what
 * is left. */
#include "infer/model/stage_split.h"

#include <string.h>

#include "store/base/mem.h"

typedef struct work {
    uint64_t layer[FM_MAX_LAYERS], head;
} work;

/* Parameters that one row meets. */
static void count(work *w, const fm_arch *a)
{
    fm_param p;
    memset(w, 0, sizeof(*w));
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        uint64_t n = 0;
        bool expert = p.place == FM_P_X_GATE || p.place == FM_P_X_UP || p.place == FM_P_X_DOWN;
        if (!p.is_matrix || fm_shape_elems(&n, &p.shape) != FM_OK)
            continue;
        if (p.layer >= 0)
            w->layer[p.layer] += expert ? n * a->sw.chosen / a->sw.experts : n;
        else if (p.place == FM_P_HEAD || (p.place == FM_P_EMBED && a->tied))
            w->head = n;
    }
}

/* Whether layers [0, layers) go into `stages` stages of at most `limit`, head behind the last one;
 * *last: where that one begins, filled as far as it may be. */
static bool fits(const work *w, uint32_t layers, uint32_t stages, uint64_t head, uint64_t limit,
                 uint32_t *last)
{
    uint32_t l = layers;
    for (uint32_t s = stages; s-- > 0; head = 0) {
        uint32_t end = l;
        uint64_t sum = head;
        while (l > s && sum + w->layer[l - 1] <= limit) /* one is left for each before it */
            sum += w->layer[--l];
        if (l == end)
            return false;
        if (s + 1 == stages)
            *last = l;
    }
    return l == 0;
}

/* Where the last of them begins if the fullest has as little as possible. */
static uint32_t last_begins(const work *w, uint32_t layers, uint32_t stages, uint64_t head)
{
    uint64_t low = 0, high = head;
    uint32_t last = 0;
    for (uint32_t l = 0; l < layers; l++)
        high += w->layer[l];
    while (low + 1 < high) { /* high is possible */
        uint64_t mid = low + (high - low) / 2;
        if (fits(w, layers, stages, head, mid, &last))
            high = mid;
        else
            low = mid;
    }
    bool possible = fits(w, layers, stages, head, high, &last);
    fm_assert(possible);
    return last;
}

fm_status fmi_stage_split_of(fmi_stage_split *out, const fm_arch *a, uint32_t stages,
                             const char *what)
{
    memset(out, 0, sizeof(*out));
    out->stages = FM_MAX(stages, 1u);
    out->begin[out->stages <= FMI_STAGES_MOST ? out->stages : 0] = a->layers;
    if (stages <= 1)
        return FM_OK;
    if (stages > FMI_STAGES_MOST)
        return fm_fail(FM_EUNSUPPORTED, "%s: %u stages, at most %u are possible", what, stages,
                       FMI_STAGES_MOST);
    if (a->layers < stages)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %u layers cannot be split over %u stages; use at most %u", what,
                       a->layers, stages, a->layers);
    work *w = fm_malloc(sizeof(*w));
    if (!w)
        return FM_ENOMEM;
    count(w, a);
    for (uint32_t s = stages; s > 1; s--)
        out->begin[s - 1] = last_begins(w, out->begin[s], s, s == stages ? w->head : 0);
    fm_free(w);
    return FM_OK;
}

uint32_t fmi_stage_split_stage(const fmi_stage_split *d, uint32_t l)
{
    uint32_t s = 0;
    while (s + 1 < d->stages && l >= d->begin[s + 1])
        s++;
    return s;
}

uint32_t fmi_stage_split_most(const fmi_stage_split *d)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < d->stages; s++)
        most = FM_MAX(most, d->begin[s + 1] - d->begin[s]);
    return most;
}
