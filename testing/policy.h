/* policy.h - what a gate requires of a suite's outcomes, as a pure function of them.
 *
 * `gate: true` requires that every case passes; a mapping sets a share, a number, or a limit of
 * regressions against a baseline. A waived case never counts against a gate; a case that could not
 * be asked or judged has not passed. SUITES.md has the keys. */
#ifndef FM_TESTING_POLICY_H
#define FM_TESTING_POLICY_H

#include "store/base/math/hash.h"
#include "store/base/text/json.h"
#include "testing/testing.h"

FM_BEGIN_DECLS

typedef enum fm_baseline {
    FM_BASELINE_NONE,
    FM_BASELINE_PARENT, /* the first parent of the version that is judged */
    FM_BASELINE_FIRST,  /* the oldest version of its line of first parents */
    FM_BASELINE_ID      /* baseline_id */
} fm_baseline;

struct fm_policy {
    bool gate;         /* false: nothing is required, and the other fields are unset */
    bool all;          /* every case passes, and every measure holds */
    double threshold;  /* least share of cases that must pass; NaN = not set */
    size_t min_passed; /* least number of cases that pass or are waived; 0 = not set */
    fm_baseline baseline;
    char baseline_id[65];  /* 7 to 64 hex digits of a version's id */
    size_t allowed;        /* cases that may break against the baseline */
    double allowed_share;  /* the same as a share of the pairs; NaN = by number */
    double significance;   /* regressions count only when p is at most this; NaN = always */
    bool measures;         /* the suite's measures must hold */
    bool asks_regressions; /* baseline is set */
};

/* Reads a gate's policy. gate: the value of the suite's key `gate`, NULL where the suite has none.
 * FM_EINVAL names what. */
FM_CHECKED fm_status fm_policy_read(fm_policy *out, const fm_json *gate, const char *what);

typedef struct fm_policy_case {
    fm_digest digest; /* pairs the cases of two runs */
    fm_verdict verdict;
    bool waived; /* waived or flaky */
} fm_policy_case;

typedef struct fm_policy_facts {
    const fm_policy_case *now;
    size_t count;
    const fm_policy_case *before; /* cases of the baseline; NULL where there is no such version */
    size_t before_count;
    const char *baseline_name;   /* for texts: "parent 1a2b3c4d5e" */
    const char *measures_failed; /* for texts: the measures that do not hold; NULL = all hold */
} fm_policy_facts;

typedef struct fm_policy_outcome {
    bool holds;
    size_t counted, passed;       /* cases that are not waived; how many of them pass */
    size_t waived, waived_passed; /* waived cases; how many of them pass without need */
    size_t paired, broken, fixed; /* compared with the baseline, without waived cases */
    double p_value;               /* exact two-sided McNemar; 1 without a baseline */
} fm_policy_outcome;

/* Judges outcomes by a policy. why gets a line with figures for each rule that does not hold. */
FM_CHECKED fm_status fm_policy_judge(fm_policy_outcome *out, fm_buf *why, const fm_policy *p,
                                     const fm_policy_facts *facts);
/* The policy as text: "every case", "share >= 0.95, at most 2 regressions against parent". */
FM_CHECKED fm_status fm_policy_words(fm_buf *out, const fm_policy *p);

/* Judges a run by its suite's policy. baseline: the suite's run on the baseline, or NULL. */
FM_CHECKED fm_status fm_gate_judge(fm_policy_outcome *out, fm_buf *why, const fm_suite_run *run,
                                   const fm_suite_run *baseline, const char *baseline_name);

FM_END_DECLS
#endif
