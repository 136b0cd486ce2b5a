/* devices.c - fmstore devices: lists the devices that --device can name on this machine. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "store/base/mem.h"

#define LINE_BYTES 256u

/* The CPU's row, with the kernels that an engine would take. */
static fm_status cpu_line(cli *c, char text[LINE_BYTES])
{
    fm_engine *e = NULL;
    fm_engine_opts o = fm_engine_defaults();
    o.threads = c->threads;
    FM_TRY(fm_engine_new(&e, &o));
    snprintf(text, LINE_BYTES, "%u threads, %s", fm_engine_threads(e), fm_engine_isa(e));
    fm_engine_free(e);
    return FM_OK;
}

static void put(fm_status *rc, fm_json *array, out_table *t, const char *name, const char *text)
{
    if (array) {
        fm_json *o = fm_json_new_object();
        fm_json_put(rc, o, "device", fm_json_new_str(name));
        fm_json_put(rc, o, "about", fm_json_new_str(text));
        fm_json_push_to(rc, array, o);
        return;
    }
    out_cell(t, "%s", name);
    out_cell(t, "%s", text);
    out_end_row(t);
}

static fm_status list(cli *c, fm_json *array, out_table *t, char why[LINE_BYTES * 2])
{
    char text[LINE_BYTES] = "", name[32];
    uint32_t cards = 0;
    fm_status rc = cpu_line(c, text);
    if (rc != FM_OK)
        return rc;
    put(&rc, array, t, "cpu", text);
    if (fm_device_count(&cards) != FM_OK) {
        snprintf(why, LINE_BYTES * 2, "%s", fm_error_text());
        fm_error_clear();
        cards = 0;
    }
    for (uint32_t i = 0; rc == FM_OK && i < cards; i++) {
        rc = fm_device_describe(text, sizeof text, i);
        snprintf(name, sizeof name, "cuda:%u", i);
        if (rc == FM_OK)
            put(&rc, array, t, name, text);
    }
    return rc;
}

static fm_status as_json(cli *c)
{
    char why[LINE_BYTES * 2] = "";
    fm_json *o = fm_json_new_object(), *array = fm_json_new_array();
    fm_status rc = o && array ? list(c, array, NULL, why) : FM_ENOMEM;
    const char *module = fm_device_module();
    if (rc != FM_OK) {
        fm_json_free(array);
        fm_json_free(o);
        return rc;
    }
    fm_json_put(&rc, o, "devices", array);
    if (*module)
        fm_json_put(&rc, o, "module", fm_json_new_str(module));
    if (*why)
        fm_json_put(&rc, o, "no_cuda", fm_json_new_str(why));
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static fm_status as_text(cli *c)
{
    char why[LINE_BYTES * 2] = "";
    out_table *t = out_table_new();
    fm_status rc = t ? list(c, NULL, t, why) : FM_ENOMEM;
    if (rc != FM_OK) {
        out_table_free(t);
        return rc;
    }
    out_table_print(t, stdout, "");
    if (*why)
        printf("no CUDA device: %s\n", why);
    return FM_OK;
}

int cmd_devices(cli *c, int argc, char **argv)
{
    bool json = false;
    size_t n;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    return code != CLI_GO_ON ? code : cli_exit(json ? as_json(c) : as_text(c));
}
