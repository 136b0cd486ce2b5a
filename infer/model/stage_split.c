/* stage_split.c - see stage_split.h. A binary search finds the smallest possible maximum: a limit
 * is possible if every layer finds a place when stages are filled from the last one. Then the same
 * for the stages before the last. */
#include "infer/model/stage_split.h"

#include <string.h>

#include "store/base/mem.h"

typedef struct work {
    uint64_t layer[FM_MAX_LAYERS], head;
} work;

/* Counts the parameters that one row uses. */
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

/* Whether layers [0, layers) fit into `stages` stages of at most `limit`, the last one with the
 * head; *last: the first layer of the last stage when it is filled as far as the limit allows. */
static bool fits(const work *w, uint32_t layers, uint32_t stages, uint64_t head, uint64_t limit,
                 uint32_t *last)
{
    uint32_t l = layers;
    for (uint32_t s = stages; s-- > 0; head = 0) {
        uint32_t end = l;
        uint64_t sum = head;
        while (l > s && sum + w->layer[l - 1] <= limit) /* leaves a layer to each stage before */
            sum += w->layer[--l];
        if (l == end)
            return false;
        if (s + 1 == stages)
            *last = l;
    }
    return l == 0;
}

/* The first layer of the last stage if the fullest stage has as little as possible. */
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
    if (fm_arch_recurs(a))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s has recurrent layers, which cannot be split over stages; use one",
                       what, a->family);
    if (a->sw.cross || a->of_source)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: the two stacks of %s are not split over stages; use one", what,
                       a->family);
    if (fm_layers_uneven(&a->sw))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s has layers with heads or inputs of their own, which are not split "
                       "over stages; use one",
                       what, a->family);
    if (a->sw.embed_width)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s makes its embeddings as wide as its layers, which is not split over "
                       "stages; use one",
                       what, a->family);
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
