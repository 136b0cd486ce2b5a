/* report.h - prints the results of the operations, for people and scripts. */
#ifndef FM_CLI_REPORT_H
#define FM_CLI_REPORT_H

#include "cli/base/context.h"
#include "cli/ops/blame/blame_more.h"
#include "cli/ops/derive.h"
#include "cli/ops/test/test_report.h"

/* suite_text.c: the effective cases of a suite, and the versions that added, changed, waived
 * them. */
fm_status print_suite(cli *c, const char *rev, const char *suite, bool json);
/* test_text.c: writes the requested files, then prints. */
fm_status print_tests(cli *c, const fm_test_result *r, const fmo_test_output *o);
/* plan_text.c: derive --plan. */
void print_derive_plan(const cli *c, const fm_derive_plan *p);
/* blame_text.c, blame_data.c */
void blame_print_history(const fmo_blame_more *m);
void blame_print_findings(const fmo_blame_more *m, bool tensors, bool data, uint64_t top);
void blame_data_print(const fmo_blame *b, uint64_t top);

#endif
