/* foreign.h - conversion of suites of other tools: shared by foreign.c and the readers, one a
 * format.
 *
 * A reader translates a test that has the same meaning here and refuses others by file, test and
 * key: a test that is left out, or that means something else, is worse than a file that is not
 * read. */
#ifndef FM_TESTING_FOREIGN_H
#define FM_TESTING_FOREIGN_H

#include "store/base/map.h"
#include "testing/suite/internal.h"

#define FMV_FOREIGN_TESTS_MAX 100000u

typedef struct fmv_foreign {
    const char *what; /* name of the file, for errors */
    const fm_foreign_opts *opts;
    const char *key;          /* "prompt" or "chat": the key for a text */
    char *name, *description; /* of the suite, owned; NULL: none */
    fm_json *cases;           /* array */
    fm_map *names;            /* names of the cases so far */
    size_t bytes;             /* bytes that the cases may still take */
} fmv_foreign;

/* One reader for each format; text is the file. */
fm_status fmv_foreign_promptfoo(fmv_foreign *f, fm_span text);
fm_status fmv_foreign_lm_eval(fmv_foreign *f, fm_span text);
fm_status fmv_foreign_checklist(fmv_foreign *f, fm_span text);
fm_status fmv_foreign_csv(fmv_foreign *f, fm_span text);

/* Stores a copy of v's text in *to; leaves *to if v has none. */
fm_status fmv_foreign_keep(char **to, const fm_json *v);
/* Consumes c, a case without a name, and adds it as `name` ("name-2" where that is taken). */
fm_status fmv_foreign_add(fmv_foreign *f, fm_json *c, const char *name);
/* Sets o[key] = text unless *rc is an error. */
void fmv_foreign_text(fm_status *rc, fm_json *o, const char *key, fm_span text);

/* text.c: renders tmpl with {{ name }}, {{ name.field }}, {{ name[0] }} of vars; a name that vars
 * lacks is FM_EINVAL. Other Jinja (except loops) goes through the engine of chat templates, where
 * an undefined name prints nothing. */
fm_status fmv_foreign_render(fm_buf *out, const char *tmpl, const fm_json *vars, const char *where);
/* The value that tmpl names if it is a single {{ path }}, else NULL. */
const fm_json *fmv_foreign_value(const char *tmpl, const fm_json *vars);
/* yaml.c */
fm_status fmv_yaml_write(fm_buf *out, const fm_json *v);
/* promptfoo.c: pushes one assertion {type, value, threshold, weight, metric} to `expect`. */
fm_status fmv_foreign_assert(fm_json *expect, const fm_json *a, const fm_json *vars,
                             const char *where);

#endif
