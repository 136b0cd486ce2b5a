/* opt.h - options by table, for every command; the short help is printed from the table. */
#ifndef FM_CLI_OPT_H
#define FM_CLI_OPT_H

#include "cli/ops/ops.h"

typedef enum opt_type {
    OPT_FLAG, /* bool *dest */
    OPT_STR,  /* const char **dest; the last one wins */
    OPT_UINT, /* uint64_t *dest */
    OPT_REAL, /* double *dest */
    OPT_LIST, /* opt_list *dest; may be given many times */
} opt_type;

#define OPT_LIST_MAX FM_WORDS_MAX
typedef fm_words opt_list;

typedef struct opt_spec {
    char letter;      /* 0 = none */
    const char *name; /* long name without dashes, NULL = none */
    opt_type type;
    const char *arg;  /* placeholder in help, "FILE" */
    const char *help; /* NULL ends the table */
    void *dest;
} opt_spec;

/* Parses options, which may stand anywhere, and moves positional words to args[0..*count); "--"
 * ends options. FM_EINVAL: an unknown option, a missing or bad value, or a count outside [min,
 * max]; FM_ECANCELLED: -h was given. */
fm_status opt_parse(int argc, char **argv, const opt_spec *table, const char **args, size_t min,
                    size_t max, size_t *count);
void opt_print_help(const opt_spec *table);

#endif
