/* fuzz_dataset.c - any bytes as training data: examples within their limits, or an error; and a
 * report on whatever became examples.
 *
 * The first byte chooses the objective (bits 0-2), the name that the file has (bits 3-5: none,
 * .csv, .tsv, .txt, .jsonl), and in bit 6 whether a share is held out; the rest is the file. */
#include "tests/kit/train_kit.h"

#include <string.h>

#include "train/data/order.h"
#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TOKENS 32u

static void check_example(const fm_example *e, const fm_dataset *d, bool targets)
{
    uint32_t sum = 0;

    fm_assert(e->parts >= 1 && e->parts <= FM_EXAMPLE_PARTS && e->preview);
    for (uint32_t k = 0; k < e->parts; k++) {
        fm_assert(e->part_len[k] > 0 && e->part_len[k] <= MAX_TOKENS);
        sum += e->part_len[k];
    }
    fm_assert(e->len == sum);
    uint32_t counted = 0;
    for (uint32_t k = 0; k < e->len; k++) {
        fm_assert(e->ids[k] >= 0 && e->ids[k] < 259);
        fm_assert(e->labels[k] == -100 || e->labels[k] == e->ids[k]);
        counted += e->labels[k] >= 0;
    }
    fm_assert((counted > 0) == targets);
    fm_assert(e->klass == -1 || (uint32_t)e->klass < fm_dataset_classes(d));
}

/* Every example once, none beyond the room. */
static void check_order(const fm_dataset *d, fm_train_config *c)
{
    fmt_order *o = NULL;
    size_t seen = 0;

    c->batch = 2;
    c->packing = true;
    c->buckets = 3;
    if (fmt_order_new(&o, c, d) < 0)
        return;
    for (uint32_t s = 0; s < fmt_order_steps(o); s++) {
        const uint32_t *example;
        const uint32_t *ends;
        size_t count;
        size_t micros;
        fm_assert(fmt_order_step(o, s, &example, &count, &ends, &micros) == FM_OK && count > 0);
        seen += count;
    }
    fm_assert(seen == fm_dataset_count(d));
    fmt_order_free(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"fuzz",       "fuzz.csv", "fuzz.tsv", "fuzz.txt",
                                        "fuzz.jsonl", "fuzz",     "fuzz",     "fuzz"};
    static const fm_data_probe probe[] = {{"a/b", {(const uint8_t *)"one two three four", 18}}};
    static fm_tokenizer *tok;
    static fm_chat_template *chat;
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_data_report_opts opts = {.probe = probe, .probes = 1};
    fm_data_report r;
    fm_dataset *d = NULL;

    if (size < 1)
        return 0;
    if (!tok) {
        tok = kit_tokenizer();
        chat = kit_chat();
    }
    c.max_tokens = MAX_TOKENS;
    c.objective = (fm_objective)((data[0] & 7) % 5);
    fm_data_file file = {
        .bytes = fm_span_of(data + 1, size - 1), .what = names[data[0] >> 3 & 7], .weight = 1.0};
    if (fm_dataset_open_files(&d, &file, 1, tok, chat, &c, data[0] & 64 ? 0.3 : 0.0) < 0)
        return 0;
    bool targets = c.objective != FM_OBJECTIVE_CLASSIFY && c.objective != FM_OBJECTIVE_CONTRASTIVE;
    for (size_t i = 0; i < fm_dataset_count(d); i++)
        check_example(fm_dataset_at(d, i), d, targets);
    for (size_t i = 0; i < fm_dataset_held_out_count(d); i++)
        check_example(fm_dataset_held_out(d, i), d, targets);
    fm_json_free(fm_dataset_manifest(d));
    fm_assert(fm_dataset_report(&r, d, tok, &c, &opts) == FM_OK);
    fm_assert(strlen(r.text) > 0);
    fm_data_report_release(&r);
    check_order(d, &c);
    fm_dataset_close(d);
    return 0;
}
