/* cmd_export.c - fmstore export: a version as files that other tools read. */
#include <string.h>

#include "cli/commands.h"
#include "store/source.h"

int cmd_export(cli *c, int argc, char **argv)
{
    static const char *const names[] = {"source", "hf", "safetensors", "peft"};
    static const fm_export_format formats[] = {FM_EXPORT_SOURCE, FM_EXPORT_HF,
                                               FM_EXPORT_SAFETENSORS, FM_EXPORT_PEFT};
    const char *args[2], *format = "hf", *dtype_name = NULL;
    size_t n, f;
    const opt_spec table[] = {
        {0, "format", OPT_STR, "F",
         "hf (default), safetensors, peft, or source: the bytes that came in", &format},
        {0, "dtype", OPT_STR, "D", "f32, bf16 or f16; default: as stored", &dtype_name},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 2, 2, &n);
    if (code != CLI_GO_ON)
        return code;
    for (f = 0; f < FM_ARRAY_LEN(names) && strcmp(format, names[f]) != 0; f++)
        ;
    if (f == FM_ARRAY_LEN(names))
        return cli_usage_error(c, "--format wants hf, safetensors, peft or source, got '%s'",
                               format);
    fm_dtype dtype = FM_DTYPE_NONE;
    if (dtype_name) {
        char upper[8] = {0};
        for (size_t i = 0; dtype_name[i] && i < sizeof upper - 1; i++)
            upper[i] = (char)(dtype_name[i] >= 'a' ? dtype_name[i] - 32 : dtype_name[i]);
        dtype = fm_dtype_parse(upper, strlen(upper));
        if (dtype != FM_F32 && dtype != FM_BF16 && dtype != FM_F16)
            return cli_usage_error(c, "--dtype wants f32, bf16 or f16, got '%s'", dtype_name);
    }
    fm_oid oid;
    fm_tree *tree = NULL;
    fm_status rc = cli_lease(c, false, "export");
    if (rc == FM_OK)
        rc = cli_resolve(c, args[0], &oid, &tree);
    if (rc == FM_OK) {
        fm_provider p = fm_store_provider(fm_repo_store(c->repo));
        rc = fm_export(tree, &p, args[1], formats[f], dtype);
    }
    if (rc == FM_OK)
        printf("%s written to %s (%s)\n", args[0], args[1], format);
    fm_tree_free(tree);
    return cli_exit(rc);
}
