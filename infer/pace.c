/* pace.c - see pace.h. A proportional controller on rows: what a row costs is not known beforehand
 * (it depends on the model, on how long its context is, on what else is in the step) and changes
 * slowly, so the last mixed step tells enough about the next. */
#include "infer/pace.h"

#define PACE_FACTOR 1.6   /* of the time without prompts; twice that time is what must not happen */
#define FIRST_ROWS 8.0    /* of the first mixed step */
#define MEASURE_EVERY 16u /* mixed steps in a row */
#define MEASURE_AGAIN 4u  /* the same where the number of streams changed */

void fmi_pace_init(fmi_pace *p)
{
    *p = (fmi_pace){.rows = FIRST_ROWS};
}

uint32_t fmi_pace_rows(const fmi_pace *p, uint32_t decoding, uint32_t most)
{
    if (decoding == 0)
        return most;
    bool stale =
        p->since >= MEASURE_EVERY || (p->decoding != decoding && p->since >= MEASURE_AGAIN);
    if (!(p->alone > 0.0) || stale)
        return 0;
    return FM_MIN((uint32_t)p->rows, most);
}

/* One slow step says little on a busy machine, so it counts a quarter, and no more than twice. */
static void note_alone(fmi_pace *p, uint32_t decoding, double seconds)
{
    if (!(p->alone > 0.0))
        p->alone = seconds;
    double t = FM_MIN(seconds, 2.0 * p->alone);
    p->alone += (p->decoding == decoding ? 0.25 : 0.5) * (t - p->alone);
    p->decoding = decoding;
    p->since = 0;
}

void fmi_pace_note(fmi_pace *p, uint32_t decoding, uint32_t prompt_rows, double seconds)
{
    if (decoding == 0 || !(seconds > 0.0))
        return;
    if (prompt_rows == 0) {
        note_alone(p, decoding, seconds);
        return;
    }
    p->since++;
    double over = FM_MAX(seconds - p->alone, 0.05 * p->alone);
    double right = prompt_rows * (PACE_FACTOR - 1.0) * p->alone / over;
    if ((double)prompt_rows + 1.0 < p->rows && right > p->rows)
        return; /* there were no more rows to take: nothing to learn */
    right = FM_MIN(right, p->rows * 1.5);
    p->rows = FM_MAX(FM_MAX(right, p->rows * 0.5), 1.0);
    p->rows = FM_MIN(p->rows, 65536.0);
}
