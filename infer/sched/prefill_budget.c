/* prefill_budget.c - see prefill_budget.h. The cost of a row is not known beforehand (it depends on
 * the model, the length of its context and the other rows) and changes slowly. It also grows with
 * the number of rows: a few may cost nothing, since the step waits for weights anyway. So the
 * number of rows changes step by step. */
#include "infer/sched/prefill_budget.h"

#define PACE_FACTOR 1.6   /* of the time without prompts; leaves a margin to twice that time */
#define FIRST_ROWS 8.0    /* rows of prompts in the first mixed step */
#define MOST_GROWTH 1.4   /* factor from one mixed step to the next */
#define MEASURE_EVERY 16u /* mixed steps before a step without prompts */
#define MEASURE_AGAIN 4u  /* the same after the number of streams changed */

void fmi_prefill_budget_init(fmi_prefill_budget *p)
{
    *p = (fmi_prefill_budget){.rows = FIRST_ROWS};
}

static void sample(fmi_samples *s, double v)
{
    s->v[s->n++ % FMI_PACE_SAMPLES] = v;
}

/* The lower of the two middle samples where their number is even; 0 without samples. */
static double median(const fmi_samples *s)
{
    double v[FMI_PACE_SAMPLES] = {0};
    uint32_t n = FM_MIN(s->n, FMI_PACE_SAMPLES);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && v[at - 1] > s->v[i]; at--)
            v[at] = v[at - 1];
        v[at] = s->v[i];
    }
    return n ? v[(n - 1) / 2] : 0.0;
}

uint32_t fmi_prefill_budget_rows(const fmi_prefill_budget *p, uint32_t decoding, uint32_t most)
{
    if (decoding == 0)
        return most;
    bool stale =
        p->since >= MEASURE_EVERY || (p->decoding != decoding && p->since >= MEASURE_AGAIN);
    if (p->alone.n == 0 || stale)
        return 0;
    return FM_MIN((uint32_t)p->rows, most);
}

void fmi_prefill_budget_note(fmi_prefill_budget *p, uint32_t decoding, uint32_t prompt_rows,
                             double seconds)
{
    if (decoding == 0 || !(seconds > 0.0))
        return;
    if (prompt_rows == 0) {
        sample(&p->alone, seconds);
        p->decoding = decoding;
        p->since = 0;
        return;
    }
    p->since++;
    double alone = median(&p->alone), most = p->rows * MOST_GROWTH;
    sample(&p->row, (seconds - alone) / prompt_rows);
    double cost = median(&p->row), right = most;
    if (cost * most > (PACE_FACTOR - 1.0) * alone)
        right = (PACE_FACTOR - 1.0) * alone / cost;
    if ((double)prompt_rows + 1.0 < p->rows && right > p->rows)
        return; /* fewer rows waited than were allowed: the time of more is not known */
    p->rows = FM_MIN(FM_MAX(FM_MAX(right, p->rows / 2.0), 1.0), 65536.0);
}
