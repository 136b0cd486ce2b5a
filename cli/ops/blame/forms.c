/* forms.c - runs other forms of the case on older versions, to see whether the fault is older than
 * the step that shows it. */
#include <string.h>

#include "cli/ops/blame/blame.h"
#include "store/base/mem.h"

#define FORMS 6
#define FORM_ID 11u /* question ids of forms begin with it */
#define CHANCE 0.02 /* probability that a sound version gives a certain wrong answer in free text */

static size_t word_at(const char *s, char *out, size_t bytes)
{
    size_t begin = 0, n = 0;
    for (; s[begin]; begin++) {
        char c = fmo_blame_letter(s[begin]);
        if (!c && n)
            break;
        if (c && n + 1 < bytes)
            out[n++] = c;
    }
    out[n] = 0;
    return n ? begin : 0;
}

#define WORD 64

static bool has_word(const char *text, const char *word)
{
    char w[WORD];
    for (size_t n; (n = word_at(text, w, sizeof w)) > 0; text += n)
        if (strcmp(w, word) == 0)
            return true;
    return false;
}

/* Whether `said` has every word that is in the wrong answer but not in the right one. Without such
 * words answers are compared as a whole, by their digests. */
static bool same_answer(const char *wrong, const char *right, const fmo_blame_heard *said,
                        uint64_t digest)
{
    char w[WORD];
    bool apart = false;
    if (said->answer == digest)
        return true;
    for (const char *p = wrong; right && said->text;) {
        size_t n = word_at(p, w, sizeof w);
        if (!n)
            return apart;
        p += n;
        if (has_word(right, w))
            continue;
        apart = true;
        if (!has_word(said->text, w))
            return false;
    }
    return false;
}

/* *wrong: the answer with that digest; *right: the answer of a version that passes. */
static void texts_of(const fmo_blame *b, uint64_t digest, const char **wrong, const char **right)
{
    *wrong = *right = NULL;
    for (size_t i = 0; i < b->count; i++) {
        if (b->version[i].text && b->version[i].heard == digest && !*wrong)
            *wrong = b->version[i].text;
        else if (b->version[i].text && b->version[i].passed && !*right)
            *right = b->version[i].text;
    }
}

static fm_status open_forms(fmo_blame *b)
{
    fm_status rc = FM_OK;
    if (!b->forms)
        rc = fm_suite_perturbed(&b->forms, b->suite, b->case_index, b->how.seed, FORMS);
    if (rc == FM_ENOTFOUND) { /* the case has no other form */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

fm_status fmo_blame_ask_forms(void *ctx, const size_t *node, size_t n, uint64_t wrong,
                              fm_blame_forms *out)
{
    fmo_blame *b = ctx;
    const char *bad, *good;
    size_t choices = fm_suite_case_choices(b->suite, b->case_index);
    fm_status rc = open_forms(b);
    size_t forms = b->forms ? fm_suite_count(b->forms) : 0, asks = n * forms;
    fmo_blame_question *q = fm_calloc(asks, sizeof *q);
    fmo_blame_heard *heard = fm_calloc(asks, sizeof *heard);
    if (rc == FM_OK && (!q || !heard))
        rc = FM_ENOMEM;
    texts_of(b, wrong, &bad, &good);
    memset(out, 0, n * sizeof *out);
    if (!bad) /* a case without an answer cannot give the same one again */
        asks = 0;
    for (size_t i = 0; rc == FM_OK && i < asks; i++) {
        q[i] = (fmo_blame_question){.what = "other forms of the case",
                                    .suite = b->forms,
                                    .case_name = fm_suite_case_name(b->forms, i % forms),
                                    .id = (FORM_ID * 1000003u + node[i / forms]) * 1000003u +
                                          i % forms};
        rc = fmo_blame_node_tree(b, node[i / forms], &q[i].tree);
    }
    FM_THEN(rc, fmo_blame_ask(b, q, asks, heard));
    for (size_t i = 0; rc == FM_OK && i < asks; i++) {
        fm_blame_forms *f = &out[i / forms];
        f->chance = choices ? 1 / (double)choices : CHANCE;
        f->asked += heard[i].verdict != FM_ERROR_CASE;
        f->same += heard[i].verdict == FM_FAIL && same_answer(bad, good, &heard[i], wrong);
    }
    if (rc == FM_OK)
        fmo_blame_heard_release(heard, asks);
    fm_free(q);
    fm_free(heard);
    return rc;
}
