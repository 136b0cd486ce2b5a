/* testkit.h - what every test of ours may lean on: fixtures, scratch folders, comparisons. */
#ifndef FM_TESTS_TESTKIT_H
#define FM_TESTS_TESTKIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/base/buf.h"
#include "store/base/error.h"
#include "store/base/os/io.h"
#include "store/base/text/json.h"
#include "store/base/mem.h"

#define TK_SKIP 77

/* Head of a test that takes nothing from its group's set-up: TEST(name) { ... }. */
#define TEST(name) static void name(__attribute__((unused)) void **state)

/* FM_OK or the test fails, printing the error text. */
#define tk_ok(expr) tk_check_ok((expr), #expr, __FILE__, __LINE__)
/* The status is as stated and the text contains `needle` (NULL: any). */
#define tk_fails(expr, status, needle)                                                             \
    tk_check_fails((expr), (status), (needle), #expr, __FILE__, __LINE__)
void tk_check_ok(fm_status rc, const char *expr, const char *file, int line);
void tk_check_fails(fm_status rc, fm_status want, const char *needle, const char *expr,
                    const char *file, int line);

/* A fresh scratch folder, removed at exit of the process. Static storage per call site is not
 * needed: the caller frees with fm_free. */
char *tk_scratch(void);

/* Paths; NULL where the data is not on this machine. fm_free. Rooms: FM_SHARED_DATA or
 * ../shared/data beside the checkout; FM_MODELS or build-independent cache
 * ~/.cache/fmstore/models. */
char *tk_shared(const char *relative);
char *tk_source(const char *relative); /* inside the checkout; fails the test if missing */
char *tk_model(const char *name);      /* a file below the models' room */
char *tk_smollm2_gguf(void);           /* the GGUF, NULL if not downloaded */
char *tk_minilm(void);                 /* all-MiniLM-L6-v2's folder, likewise */

/* Norm-wise relative difference |a-b| / |b| in double; NaN anywhere gives NaN. */
double tk_rel_norm(const float *a, const float *b, size_t n);
double tk_max_abs_diff(const float *a, const float *b, size_t n);
/* Fails on NaN too. */
void tk_assert_le(double value, double limit, const char *what);

/* Exit code for main(): cmocka's failures, or 77 when `reason` is set (printed). */
int tk_skip(const char *reason);

#endif
