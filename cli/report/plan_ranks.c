/* plan_ranks.c - prints plans over ranks: the memory of each rank. */
#include "cli/report/plan_ranks.h"

#include <string.h>

/* "0-2" */
static const char *layers_text(char text[24], uint32_t begin, uint32_t end)
{
    (void)snprintf(text, 24, begin + 1 == end ? "%u" : "%u-%u", begin, end - 1);
    return text;
}

static fm_status cell_stages(out_table *t, const fm_serve_plan *p, uint32_t stages)
{
    fm_buf list;
    char text[24];
    fm_buf_init(&list, 0);
    for (uint32_t s = 0; s < stages; s++)
        fm_buf_printf(&list, "%s%s", s ? ", " : "",
                      layers_text(text, p->begin[s], p->begin[s + 1]));
    fm_status rc = fm_buf_ok(&list);
    if (rc == FM_OK)
        out_cell(t, "%s", fm_buf_cstr(&list));
    fm_buf_release(&list);
    return rc;
}

/* Prints one split as a row; a split that the model does not allow is a row with the reason. */
static fm_status serve_row(out_table *t, const fm_serve_ask *ask, const char *rev, uint32_t stages,
                           uint32_t split)
{
    fm_serve_plan p;
    fm_status rc = fm_serve_plan_of(&p, ask, stages, split, rev);
    if (rc < 0 && rc != FM_EUNSUPPORTED)
        return rc;
    out_cell_right(t, "%u", stages);
    out_cell_right(t, "%u", split);
    out_cell_right(t, "%s", rc < 0 ? "" : out_bytes(p.weight_bytes));
    out_cell_right(t, "%s", rc < 0 ? "" : out_bytes(p.kv_bytes));
    out_cell_right(t, "%s", rc < 0 ? "" : out_bytes(p.text_bytes));
    out_cell_right(t, "%s", rc < 0 ? "" : out_bytes(p.room_bytes));
    out_cell_right(t, "%s", rc < 0 ? "" : out_bytes(p.bytes));
    if (rc < 0) {
        out_cell(t, "%s", fm_error_text());
        fm_error_clear();
    } else {
        FM_TRY(cell_stages(t, &p, stages));
        if (!p.fits)
            out_cell(t, "does not fit");
    }
    out_end_row(t);
    return FM_OK;
}

static fm_status print_ways(const fm_serve_ask *ask, const char *rev, uint32_t ranks,
                            uint32_t stages)
{
    static const char *const head[] = {"stages", "split",     "weights", "pages",
                                       "text",   "exchanges", "a rank"};
    out_table *t = out_table_new();
    fm_status rc = FM_OK;
    for (size_t i = 0; i < FM_ARRAY_LEN(head); i++)
        out_cell_right(t, "%s", head[i]);
    out_cell(t, "layers");
    out_end_row(t);
    for (uint32_t s = 1; rc == FM_OK && s <= ranks; s++)
        if (stages ? s == stages : ranks % s == 0)
            rc = serve_row(t, ask, rev, s, ranks / s);
    out_table_print(t, stdout, "  ");
    return rc;
}

fm_status plan_serve(cli *c, const char *rev, uint32_t ranks, uint32_t stages, uint32_t rows,
                     uint64_t machine_bytes)
{
    fm_model *m = NULL;
    fm_oid oid;
    FM_TRY(fm_ops_load_rev(c, rev, &oid, &m));
    const bool host = strcmp(fm_engine_device(c->engine), "cpu") == 0;
    const fm_serve_ask ask = {.arch = fm_model_arch(m),
                              .weight_bytes = fm_engine_stats_of(c->engine).weight_bytes,
                              .kv_bytes = c->kv_bytes,
                              .memory_bytes = host ? machine_bytes : 0,
                              .rows = rows};
    printf("plan    %s, mode %s, %u rank%s, a step of %u rows; of the rank with the most:\n", rev,
           fm_engine_mode(c->engine), ranks, ranks == 1 ? "" : "s", rows);
    fm_status rc = print_ways(&ask, rev, ranks, stages);
    if (rc == FM_OK && ask.memory_bytes)
        printf("machine %s for all ranks\n", out_bytes(ask.memory_bytes));
    fm_model_close(m);
    return rc;
}

void plan_train(const fm_derive_plan *d)
{
    const fm_plan *p = &d->plan;
    const fm_train_ranks_plan *r = &d->of_rank;
    uint64_t one = p->parameter_bytes + p->gradient_bytes + p->moment_bytes;
    uint64_t many = r->parameter_bytes + r->gradient_bytes + r->moment_bytes + r->waiting_bytes;
    printf("split   %u shards of each micro-batch, %u a rank; the stem whole on each\n", d->shards,
           d->rank_shards);
    printf("memory  a rank: %s instead of %s of what trains (moments %s, shards that wait %s), "
           "activations of a shard\n",
           out_bytes(many), out_bytes(one), out_bytes(r->moment_bytes),
           out_bytes(r->waiting_bytes));
}

static void stage_row(out_table *table, const fm_stages_plan *p, uint32_t s)
{
    const fm_stage_plan *q = &p->stage[s];
    char text[24];
    out_cell_right(table, "%u", s);
    out_cell_right(table, "%s", layers_text(text, q->begin, q->end));
    out_cell(table, "%s", s == 0 ? "embedding" : s + 1 == p->stages ? "norm, head" : "");
    out_cell_right(table, "%s", out_bytes(q->stem_bytes));
    out_cell_right(table, "%llu", (unsigned long long)q->trains);
    out_cell_right(table, "%s", out_bytes(q->state_bytes));
    out_cell_right(table, "%s", out_bytes(q->activation_bytes));
    out_cell_right(table, "%u", q->kept);
    out_end_row(table);
}

void plan_train_stages(const fm_stages_plan *p)
{
    static const char *const head[] = {"stage",  "layers",    "and",         "stem",
                                       "trains", "its state", "activations", "kept"};
    out_table *table = out_table_new();
    printf("stages  %u of %u rank%s; %u pass%s of a step\n", p->stages, p->wide,
           p->wide == 1 ? "" : "s", p->passes, p->passes == 1 ? "" : "es");
    for (size_t i = 0; i < FM_ARRAY_LEN(head); i++)
        out_cell_right(table, "%s", head[i]);
    out_end_row(table);
    for (uint32_t s = 0; s < p->stages; s++)
        stage_row(table, p, s);
    out_table_print(table, stdout, "  ");
}
