/* policy.h - what a gate asks of a suite's outcomes, as a pure function of them.
 *
 * `gate: true` asks that every case passes; a mapping asks for a share, a number, no more than so
 * many regressions against a baseline. A waived case never counts against a gate; one that could
 * not be asked or judged has not passed. SUITES.md has the keys. */
#ifndef FM_TESTING_POLICY_H
#define FM_TESTING_POLICY_H

#include "store/base/math/hash.h"
#include "store/base/text/json.h"
#include "testing/testing.h"

FM_BEGIN_DECLS

typedef enum fm_baseline {
    FM_BASELINE_NONE,
    FM_BASELINE_PARENT, /* the first parent of the version that is judged */
    FM_BASELINE_FIRST,  /* the end of its line of first parents */
    FM_BASELINE_ID      /* baseline_id */
} fm_baseline;

struct fm_policy {
    bool gate;         /* false: nothing is asked, the rest is unset */
    bool all;          /* every case passes, and every measure holds */
    double threshold;  /* least share of the cases that passes; NaN = not asked */
    size_t min_passed; /* 0 = not asked */
    fm_baseline baseline;
    char baseline_id[65];  /* 7 to 64 hex digits of a version's id */
    size_t allowed;        /* cases that may break against the baseline */
    double allowed_share;  /* ... as a share of the pairs; NaN = by number */
    double significance;   /* regressions count only when p is at most this; NaN = always */
    bool measures;         /* the suite's measures hold */
    bool asks_regressions; /* baseline is set */
};

/* gate: the value of the suite's key `gate`, NULL where it has none. FM_EINVAL names what. */
FM_CHECKED fm_status fm_policy_read(fm_policy *out, const fm_json *gate, const char *what);

typedef struct fm_policy_case {
    fm_digest digest; /* pairs the cases of two runs */
    fm_verdict verdict;
    bool waived;
} fm_policy_case;

typedef struct fm_policy_facts {
    const fm_policy_case *now;
    size_t count;
    const fm_policy_case *before; /* of the baseline; NULL where there is no such version */
    size_t before_count;
    const char *baseline_name;   /* for words: "parent 1a2b3c4d5e" */
    const char *measures_failed; /* for words: which do not hold; NULL = all hold */
} fm_policy_facts;

typedef struct fm_policy_outcome {
    bool holds;
    size_t counted, passed;       /* cases that are not waived; of them, passing */
    size_t waived, waived_passed; /* waived; of them, passing: their waiver is no longer needed */
    size_t paired, broken, fixed; /* against the baseline, without the waived */
    double p_value;               /* exact two-sided McNemar over broken and fixed; 1 without */
} fm_policy_outcome;

/* why gets one line for each rule that does not hold, with figures; nothing where all hold. */
FM_CHECKED fm_status fm_policy_judge(fm_policy_outcome *out, fm_buf *why, const fm_policy *p,
                                     const fm_policy_facts *facts);
/* The policy in words: "every case", "share >= 0.95, at most 2 regressions against parent". */
FM_CHECKED fm_status fm_policy_words(fm_buf *out, const fm_policy *p);

/* A run judged by its suite's policy; baseline: the same suite's run on that version, or NULL. */
FM_CHECKED fm_status fm_gate_judge(fm_policy_outcome *out, fm_buf *why, const fm_suite_run *run,
                                   const fm_suite_run *baseline, const char *baseline_name);

FM_END_DECLS
#endif
