/* ctest: cost=15 */
/* Each allocation of each public call of store.h, tree.h, source.h and lineage.h fails in turn,
 * once and then for ever: the call says FM_ENOMEM or does its work, leaks nothing (under
 * LeakSanitizer), and the handles go on working. */
#include <string.h>

#include "lineage/lineage.h"
#include "tests/fault/kit/fault_kit.h"
#include "tests/format/fixtures.h"
#include "tests/kit/lineage_kit.h"

enum { MAX_ALLOCATIONS = 5000, BYTES = 5000 };

typedef struct world {
    char *dir, *sound, *hf, *whole, *gguf, *peft, *file, *out;
    fm_repo *r;
    fm_store *s;
    fm_oid base, child;
    fm_tree *base_tree, *child_tree, *scratch;
    fm_txn *t;
    fm_source *src;
    fm_digest id, blob, big;
    unsigned round;
    uint8_t bytes[BYTES];
} world;

typedef fm_status (*call)(world *w);

/* ==== one call ============================================================================= */

/* What must still work after any failure: a read through each handle. */
static void still_usable(world *w, const char *name, uint64_t n)
{
    uint8_t got[20];
    fm_oid oid;
    if (fm_store_read(w->s, &w->blob, got, sizeof got) != FM_OK ||
        memcmp(got, "tokens tokens tokens", sizeof got) != 0 ||
        fm_rev_resolve(w->r, &oid, "child~1") != FM_OK || !fm_oid_eq(&oid, &w->base))
        fail_msg("%s, allocation %llu: the handles do not work any more: %s", name,
                 (unsigned long long)n, fm_error_text());
}

static bool fails_at(world *w, const char *name, call fn, uint64_t n, bool forever)
{
    w->round++;
    uint64_t before = fm_mem_alloc_count();
    fm_mem_fail_at(n, forever);
    fm_status rc = fn(w);
    fm_mem_fail_at(0, false);
    bool reached = fm_mem_alloc_count() - before >= n;
    if (rc != FM_OK && (rc != FM_ENOMEM || !reached))
        fail_msg("%s, allocation %llu%s: %s: %s", name, (unsigned long long)n,
                 forever ? " and all after" : "", fm_status_name(rc), fm_error_text());
    return reached;
}

static void each_allocation(world *w, const char *name, call fn, call reset)
{
    uint64_t n = 1, step = fk_scaled(8) == 1 ? 3 : 1; /* with sanitizers every third */
    for (bool reached = true; reached; n += step) {
        assert_true(n < MAX_ALLOCATIONS);
        for (int forever = 0; forever < 2; forever++) {
            if (reset)
                tk_ok(reset(w));
            reached = fails_at(w, name, fn, n, forever != 0);
        }
        if (n < 20 || n % 16 == 0)
            still_usable(w, name, n);
    }
    still_usable(w, name, n);
    print_message("  %-24s %5llu allocations\n", name, (unsigned long long)(n - 1 - step));
}

/* ==== store.h ============================================================================== */

static fm_status c_open(world *w)
{
    fm_store *s;
    fm_status rc = fm_store_open(&s, w->dir);
    fm_store_close(rc == FM_OK ? s : NULL);
    return rc;
}

static fm_status c_info(world *w)
{
    fm_object_info info;
    return fm_store_info(w->s, &info, &w->id);
}

static fm_status c_has(world *w)
{
    fm_digest none = {{1}};
    fm_ignore((fm_status)fm_store_has(w->s, &none), "false when memory fails");
    fm_ignore((fm_status)fm_store_has(w->s, &w->id), "false when memory fails");
    return FM_OK;
}

static fm_status c_read(world *w)
{
    uint8_t got[BYTES];
    fm_status rc = fm_store_read(w->s, &w->big, got, BYTES);
    if (rc == FM_OK)
        assert_memory_equal(got, w->bytes, BYTES);
    return rc;
}

static fm_status c_read_range(world *w)
{
    uint8_t got[100];
    fm_status rc = fm_store_read_range(w->s, &w->big, 700, sizeof got, got, 0);
    if (rc == FM_OK)
        assert_memory_equal(got, w->bytes + 700, sizeof got);
    return rc;
}

static fm_status c_view(world *w)
{
    fm_span span;
    return fm_store_view(w->s, &w->big, &span);
}

static fm_status c_provider(world *w)
{
    fm_provider p = fm_store_provider(w->s);
    fm_buf b;
    fm_status rc = FM_OK;
    fm_buf_init(&b, 0);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(w->child_tree); i++) {
        const fm_entry *e = fm_tree_at(w->child_tree, i);
        fm_span view;
        uint8_t part[4];
        rc = fm_entry_read(&b, &p, e);
        if (rc == FM_OK)
            rc = fm_entry_read_range(&p, e, 0, FM_MIN(e->bytes, sizeof part), part, 0);
        if (rc == FM_OK && e->kind != FM_ENTRY_FILE)
            rc = p.view(p.ctx, e, &view);
    }
    fm_buf_release(&b);
    return rc;
}

/* All puts in one transaction, which is then given up. */
static fm_status c_puts(world *w)
{
    fm_txn *t = NULL;
    fm_tree *tree = NULL;
    fm_digest a, b;
    fm_shape shape = {1, {BYTES / 4}};
    fm_provider p = fm_store_provider(w->s);
    w->bytes[16] = (uint8_t)w->round;
    w->bytes[17] = (uint8_t)(w->round >> 8);
    fm_span bytes = fm_span_of(w->bytes, BYTES);
    fm_status rc = fm_tree_new(&tree);
    if (rc == FM_OK)
        rc = fm_txn_begin(&t, w->s);
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(t, &a, FM_F32, &shape, bytes, NULL, NULL);
    w->bytes[0] ^= 1;
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(t, &b, FM_F32, &shape, bytes, &a, NULL);
    w->bytes[0] ^= 1;
    if (rc == FM_OK)
        rc = fm_txn_put_blob(t, &b, bytes, NULL);
    if (rc == FM_OK)
        rc = fm_txn_put_path(t, tree, "source/files/x", bytes);
    if (rc == FM_OK)
        rc = fm_txn_put_tree(t, w->child_tree, &p, w->base_tree, NULL, NULL);
    fm_txn_close(t);
    fm_tree_free(tree);
    return rc;
}

static fm_status new_store(world *w)
{
    fm_status rc = fm_remove_tree(w->out);
    if (rc == FM_OK)
        rc = fm_make_dirs(w->out);
    return rc == FM_OK ? fm_store_init(w->out) : rc;
}

/* In a store of its own: a pack more is some allocations more for the next round. */
static fm_status c_commit(world *w)
{
    fm_store *s = NULL;
    fm_txn *t = NULL;
    fm_digest id;
    fm_txn_stats stats;
    fm_status rc = fm_store_open(&s, w->out);
    if (rc == FM_OK)
        rc = fm_txn_begin(&t, s);
    if (rc == FM_OK)
        rc = fm_txn_put_blob(t, &id, fm_span_of(w->bytes, BYTES), NULL);
    if (rc == FM_OK)
        rc = fm_txn_commit(t, &stats);
    if (rc == FM_OK)
        assert_true(fm_store_has(s, &id));
    fm_txn_close(t);
    fm_store_close(s);
    return rc;
}

static void no_fault(void *ctx, const char *text)
{
    (void)ctx;
    fail_msg("fsck: %s", text);
}

static fm_status c_fsck(world *w)
{
    fm_fsck_report report;
    return fm_store_fsck(w->s, true, &report, no_fault, NULL);
}

static fm_status c_rebuild(world *w)
{
    return fm_store_rebuild_index(w->s);
}

static fm_status c_totals(world *w)
{
    fm_store_totals totals;
    return fm_store_totals_of(w->s, &totals);
}

static fm_status c_store_init(world *w)
{
    return fm_store_init(w->out);
}

static fm_status fresh_out(world *w)
{
    fm_status rc = fm_remove_tree(w->out);
    return rc == FM_OK ? fm_make_dirs(w->out) : rc;
}

static fm_status no_out(world *w)
{
    return fm_remove_tree(w->out);
}

/* ==== tree.h =============================================================================== */

static fm_status c_tree_build(world *w)
{
    fm_tree *tree = NULL, *copy = NULL;
    fm_shape shape = {1, {BYTES / 4}};
    fm_digest d;
    fm_buf path;
    fm_buf_init(&path, 0);
    fm_status rc = fm_tree_new(&tree);
    if (rc == FM_OK)
        rc = fm_tensor_path(&path, "tensors", "a.b.%c.weight");
    if (rc == FM_OK)
        rc = fm_tree_put_tensor(tree, fm_buf_cstr(&path), "a.b.%c.weight", FM_F32, &shape, &w->id);
    if (rc == FM_OK)
        rc = fm_tree_put_blob(tree, "tokenizer/x", &w->blob, 20);
    if (rc == FM_OK)
        rc = fm_tree_put_file(tree, "README.md", fm_span_str("card"));
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(w->base_tree); i++)
        rc = fm_tree_put_entry(tree, fm_tree_at(w->base_tree, i));
    if (rc == FM_OK)
        rc = fm_tree_copy(&copy, tree);
    if (rc == FM_OK)
        rc = fm_tree_remove(tree, "README.md");
    if (rc == FM_OK)
        rc = fm_tree_digest(&d, copy, NULL);
    fm_tree_free(tree);
    fm_tree_free(copy);
    fm_buf_release(&path);
    return rc;
}

static fm_status c_tree_code(world *w)
{
    fm_tree *tree = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_tree_new(&tree);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(w->base_tree); i++) {
        const fm_entry *e = fm_tree_at(w->base_tree, i);
        fm_buf_clear(&text);
        rc = fm_entry_encode(&text, e);
        if (rc == FM_OK)
            rc = fm_tree_put_encoded(tree, e->path, fm_buf_span(&text));
    }
    fm_tree_free(tree);
    fm_buf_release(&text);
    return rc;
}

/* ==== source.h ============================================================================= */

static fm_status read_all(const fm_source *src)
{
    fm_provider p = fm_source_provider(src);
    const fm_tree *tree = fm_source_tree(src);
    fm_status rc = FM_OK;
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++)
        rc = fm_entry_read(&b, &p, fm_tree_at(tree, i));
    fm_buf_release(&b);
    return rc;
}

static fm_status open_and_read(const char *path)
{
    fm_source *src = NULL;
    fm_status rc = fm_source_open(&src, path);
    if (rc == FM_OK)
        rc = read_all(src);
    fm_source_close(src);
    return rc;
}

static fm_status c_open_hf(world *w)
{
    return open_and_read(w->hf);
}

static fm_status c_open_gguf(world *w)
{
    return open_and_read(w->gguf);
}

static fm_status c_open_file(world *w)
{
    return open_and_read(w->file);
}

static fm_status c_open_peft(world *w)
{
    return open_and_read(w->peft);
}

static fm_status laid_on(world *w, const char *model, fm_source **base, fm_source **adapter,
                         fm_tree **out)
{
    fm_buf warning;
    fm_buf_init(&warning, 0);
    fm_status rc = fm_source_open(base, model);
    if (rc == FM_OK)
        rc = fm_source_open(adapter, w->peft);
    if (rc == FM_OK)
        rc = fm_adapter_apply(out, fm_source_tree(*base), fm_source_tree(*adapter), "other",
                              &warning);
    fm_buf_release(&warning);
    return rc;
}

static fm_status c_adapter(world *w)
{
    fm_source *base = NULL, *adapter = NULL;
    fm_tree *tree = NULL;
    fm_status rc = laid_on(w, w->hf, &base, &adapter, &tree);
    fm_tree_free(tree);
    fm_source_close(base);
    fm_source_close(adapter);
    return rc;
}

/* Entries of either source. */
static fm_status read_either(void *ctx, const fm_entry *e, void *dst)
{
    fm_source **pair = ctx;
    const bool adapter =
        strncmp(e->path, "adapters/", 9) == 0 || strncmp(e->path, "source/", 7) == 0;
    fm_provider p = fm_source_provider(pair[adapter]);
    return p.read(p.ctx, e, dst);
}

static fm_status export_laid(world *w, fm_export_format format)
{
    fm_source *pair[2] = {NULL, NULL};
    fm_tree *tree = NULL;
    fm_provider p = {.ctx = pair, .read = read_either};
    fm_status rc = laid_on(w, w->hf, &pair[0], &pair[1], &tree);
    if (rc == FM_OK)
        rc = fm_export(tree, &p, w->out, format, FM_DTYPE_NONE);
    fm_tree_free(tree);
    fm_source_close(pair[0]);
    fm_source_close(pair[1]);
    return rc;
}

static fm_status c_export_merged(world *w)
{
    return export_laid(w, FM_EXPORT_HF);
}

static fm_status c_export_file(world *w)
{
    return export_laid(w, FM_EXPORT_SAFETENSORS);
}

/* What GGUF needs of a config, a scaling that becomes a table, and a tokenizer. */
static void whole_folder(const char *dir)
{
    fx_hf_folder(dir);
    fx_text(dir, "config.json",
            "{\"model_type\": \"llama\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "
            "\"num_attention_heads\": 2, \"intermediate_size\": 12, \"rms_norm_eps\": 1e-5, "
            "\"max_position_embeddings\": 16, \"tie_word_embeddings\": true, "
            "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}}");
    fx_text(dir, "tokenizer.json",
            "{\"added_tokens\": [{\"id\": 3, \"content\": \"x\", \"special\": false}], "
            "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
            "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
            "\"merges\": [[\"a\", \"b\"]]}}");
    fx_text(dir, "chat_template.jinja", "{{ messages }}");
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_u32(&b, 1);
    fm_buf_u32(&b, 19);
    fm_buf_str(&b, "blk.0.ffn_up.weight");
    fm_buf_u32(&b, 1);
    fm_buf_u32(&b, 8);
    for (uint32_t i = 0; i < 8; i++)
        fm_buf_u32(&b, 0x3f800000u); /* 1.0f */
    fx_write(dir, "imatrix.dat", b.data, b.len);
    fm_buf_release(&b);
}

static fm_status c_export_as_gguf(world *w)
{
    fm_source *src = NULL;
    fm_status rc = fm_source_open(&src, w->whole);
    if (rc == FM_OK) {
        fm_provider p = fm_source_provider(src);
        rc = fm_export(fm_source_tree(src), &p, w->out, FM_EXPORT_GGUF, FM_F16);
    }
    fm_source_close(src);
    return rc;
}

/* An adapter as a GGUF of its own, which is opened again as its model's. */
static fm_status c_export_gguf_lora(world *w)
{
    fm_source *pair[2] = {NULL, NULL}, *back = NULL;
    fm_tree *tree = NULL;
    fm_provider p = {.ctx = pair, .read = read_either};
    fm_status rc = laid_on(w, w->whole, &pair[0], &pair[1], &tree);
    if (rc == FM_OK)
        rc = fm_export(tree, &p, w->out, FM_EXPORT_GGUF_LORA, FM_F16);
    if (rc == FM_OK)
        rc = fm_source_open_for(&back, w->out, tree, &p);
    fm_source_close(back);
    fm_tree_free(tree);
    fm_source_close(pair[0]);
    fm_source_close(pair[1]);
    return rc;
}

/* In a mix of block types, by an importance matrix that has one weight of the model. */
static fm_status c_export_mixed(world *w)
{
    char *matrix = fm_path_join(w->whole, "imatrix.dat");
    const fm_view_opts opts = {.format = FM_EXPORT_GGUF, .mix = "Q4_0", .imatrix = matrix};
    fm_source *src = NULL;
    fm_status rc = matrix ? fm_source_open(&src, w->whole) : FM_ENOMEM;
    if (rc == FM_OK) {
        fm_provider p = fm_source_provider(src);
        rc = fm_export_as(fm_source_tree(src), &p, w->out, &opts);
    }
    fm_source_close(src);
    fm_free(matrix);
    return rc;
}

static fm_status c_export_peft(world *w)
{
    return export_laid(w, FM_EXPORT_PEFT);
}

static fm_status export_back(world *w, const char *path)
{
    fm_source *src = NULL;
    fm_status rc = fm_source_open(&src, path);
    if (rc == FM_OK) {
        fm_provider p = fm_source_provider(src);
        rc = fm_export(fm_source_tree(src), &p, w->out, FM_EXPORT_SOURCE, FM_DTYPE_NONE);
    }
    fm_source_close(src);
    return rc;
}

static fm_status c_export_source(world *w)
{
    return export_back(w, w->hf);
}

static fm_status c_export_gguf(world *w)
{
    return export_back(w, w->gguf);
}

static fm_status c_lora_spec(world *w)
{
    fm_json *json = NULL;
    fm_lora_spec spec;
    fm_status rc = fm_json_parse(&json, fm_span_str(FX_LORA), "adapter_config.json");
    (void)w;
    if (rc == FM_OK)
        rc = fm_lora_spec_of(&spec, json, "model.layers.0.mlp.up_proj");
    fm_json_free(json);
    return rc;
}

/* ==== lineage.h ============================================================================ */

static fm_status c_repo_init(world *w)
{
    return fm_repo_init(w->out, true);
}

static fm_status c_repo_open(world *w)
{
    fm_repo *r;
    fm_status rc = fm_repo_open(&r, w->dir);
    fm_repo_close(rc == FM_OK ? r : NULL);
    return rc;
}

static fm_status c_config(world *w)
{
    fm_free(fm_repo_config(w->r, "fmstore.format"));
    return FM_OK;
}

static fm_status c_resolve(world *w)
{
    fm_oid oid;
    fm_status rc = fm_rev_resolve(w->r, &oid, "child~1");
    if (rc == FM_OK)
        rc = fm_kind_check("import");
    return rc == FM_OK ? fm_branch_name_check("some/name") : rc;
}

static fm_status c_version_read(world *w)
{
    fm_version v;
    fm_status rc = fm_version_read(w->r, &v, &w->child);
    if (rc == FM_OK)
        fm_version_release(&v);
    return rc;
}

static fm_status c_version_tree(world *w)
{
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(w->r, &tree, &w->child);
    fm_tree_free(tree);
    return rc;
}

static fm_status c_version_commit(world *w)
{
    char message[64];
    fm_oid oid;
    fm_commit_opts o = {.kind = "finetune",
                        .message = message,
                        .parent = &w->base,
                        .parent_count = 1,
                        .time = KIT_TIME};
    snprintf(message, sizeof message, "commit %u", w->round);
    fm_status rc = fm_version_commit(w->r, &oid, w->child_tree, &o);
    if (rc == FM_OK) /* what it says is there must be there */
        rc = fm_ref_update(w->r, "refs/heads/moving", &oid, NULL, "made");
    return rc;
}

/* The repository as it was at first: a pack more is some allocations more for the next round. */
static fm_status as_at_first(world *w)
{
    fm_repo_close(w->r);
    w->r = NULL;
    tk_ok(fm_remove_tree(w->dir));
    fk_copy_tree(w->sound, w->dir);
    fm_status rc = fm_repo_open(&w->r, w->dir);
    w->s = rc == FM_OK ? fm_repo_store(w->r) : NULL;
    return rc;
}

static fm_status moving_at_base(world *w)
{
    fm_status rc = as_at_first(w);
    return rc == FM_OK ? fm_ref_update(w->r, "refs/heads/moving", &w->base, NULL, "made") : rc;
}

static fm_status c_ref_update(world *w)
{
    return fm_ref_update(w->r, "refs/heads/moving", &w->child, &w->base, "moved");
}

static fm_status c_ref_delete(world *w)
{
    return fm_ref_delete(w->r, "refs/heads/moving", &w->base);
}

static fm_status on_ref(void *ctx, const char *name, const fm_oid *oid)
{
    fm_oid got;
    world *w = ctx;
    fm_status rc = fm_ref_read(w->r, &got, name);
    assert_true(rc != FM_OK || fm_oid_eq(&got, oid));
    return rc;
}

static fm_status c_ref_each(world *w)
{
    return fm_ref_each(w->r, "refs/", on_ref, w);
}

static fm_status on_version(void *ctx, const fm_version *v)
{
    (void)ctx;
    (void)v;
    return FM_OK;
}

static fm_status c_log(world *w)
{
    fm_status rc = fm_log_walk(w->r, NULL, 0, on_version, NULL);
    return rc == FM_OK ? fm_log_walk(w->r, &w->child, 1, on_version, NULL) : rc;
}

static fm_status c_merge_base(world *w)
{
    fm_oid oid;
    return fm_merge_base(w->r, &oid, &w->child, &w->base);
}

static fm_status on_change(void *ctx, const fm_change *c)
{
    world *w = ctx;
    fm_provider p = fm_store_provider(w->s);
    fm_tensor_change out;
    if (c->kind != FM_CHANGE_MODIFY || c->a->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    return fm_tensor_compare(&p, c->a, c->b, &out);
}

static fm_status c_diff(world *w)
{
    return fm_diff_trees(w->base_tree, w->child_tree, on_change, w);
}

static fm_status c_results(world *w)
{
    char key[65], value[64];
    fm_buf out;
    fm_buf_init(&out, 0);
    snprintf(key, sizeof key, "%064x", w->round);
    snprintf(value, sizeof value, "{\"n\":%u}", w->round);
    fm_status rc = fm_result_put(w->r, key, fm_span_str(value));
    if (rc == FM_OK)
        rc = fm_result_get(w->r, &out, key);
    if (rc == FM_OK)
        rc = fm_result_flush(w->r);
    if (rc == FM_OK)
        assert_string_equal(fm_buf_cstr(&out), value);
    fm_buf_release(&out);
    return rc;
}

static fm_status c_notes(world *w)
{
    char line[64];
    fm_buf out;
    fm_buf_init(&out, 0);
    snprintf(line, sizeof line, "line %u", w->round % 50);
    fm_status rc = fm_note_add(w->r, &w->child, line);
    if (rc == FM_OK)
        rc = fm_note_read(w->r, &out, &w->child);
    fm_buf_release(&out);
    return rc;
}

static fm_status c_repo_fsck(world *w)
{
    fm_fsck_report report;
    return fm_repo_fsck(w->r, true, &report, no_fault, NULL);
}

static fm_status c_repo_rebuild(world *w)
{
    return fm_repo_rebuild_index(w->r);
}

static fm_status c_stats(world *w)
{
    fm_repo_stats stats;
    fm_status rc = fm_repo_stats_of(w->r, &stats);
    if (rc == FM_OK)
        fm_repo_stats_release(&stats);
    return rc;
}

/* ==== tests ================================================================================ */

static void put_objects(world *w)
{
    fm_shape shape = {1, {BYTES / 4}};
    fm_txn *t;
    for (size_t i = 0; i < BYTES; i++)
        w->bytes[i] = (uint8_t)(i * i / 50);
    tk_ok(fm_txn_begin(&t, w->s));
    w->bytes[8] ^= 3;
    tk_ok(fm_txn_put_tensor(t, &w->id, FM_F32, &shape, fm_span_of(w->bytes, BYTES), NULL, NULL));
    w->bytes[8] ^= 3;
    tk_ok(fm_txn_put_tensor(t, &w->big, FM_F32, &shape, fm_span_of(w->bytes, BYTES), &w->id, NULL));
    tk_ok(fm_txn_put_blob(t, &w->blob, fm_span_str("tokens tokens tokens"), NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
}

static int make_world(void **state)
{
    static world w;
    fm_buf gguf;
    memset(&w, 0, sizeof w);
    w.r = kit_repo(&w.dir);
    w.s = fm_repo_store(w.r);
    put_objects(&w);
    w.base = kit_branch(w.r, "base", NULL, 1);
    w.child = kit_branch(w.r, "child", &w.base, 2);
    tk_ok(fm_version_tree(w.r, &w.base_tree, &w.base));
    tk_ok(fm_version_tree(w.r, &w.child_tree, &w.child));
    w.hf = fm_path_join(w.dir, "tmp/hf");
    w.peft = fm_path_join(w.dir, "tmp/peft");
    w.gguf = fm_path_join(w.dir, "tmp/x.gguf");
    w.file = fm_path_join(w.hf, "model.safetensors");
    w.out = fm_path_join(w.dir, "tmp/out");
    fx_hf_folder(w.hf);
    w.whole = fm_path_join(w.dir, "tmp/whole");
    whole_folder(w.whole);
    fx_peft_folder(w.peft, FX_LORA, FX_ADAPTER, FM_ARRAY_LEN(FX_ADAPTER));
    fm_buf_init(&gguf, 0);
    gg_build(&gguf, &(gg_spec){.version = 3});
    tk_ok(fm_write_file(w.gguf, gguf.data, gguf.len));
    fm_buf_release(&gguf);
    char *other = tk_scratch();
    w.sound = fm_path_join(other, "sound");
    fm_free(other);
    fm_repo_close(w.r);
    fk_copy_tree(w.dir, w.sound);
    tk_ok(fm_repo_open(&w.r, w.dir));
    w.s = fm_repo_store(w.r);
    *state = &w;
    return 0;
}

static int end_world(void **state)
{
    world *w = *state;
    fm_tree_free(w->base_tree);
    fm_tree_free(w->child_tree);
    fm_free(w->sound);
    fm_free(w->hf);
    fm_free(w->whole);
    fm_free(w->peft);
    fm_free(w->gguf);
    fm_free(w->file);
    fm_free(w->out);
    kit_close(w->r, w->dir);
    return 0;
}

#define TRY(fn) each_allocation(w, #fn, fn, NULL)
#define TRY_AFTER(fn, reset) each_allocation(w, #fn, fn, reset)

static void store_calls(void **state)
{
    world *w = *state;
    TRY(c_open);
    TRY(c_info);
    TRY(c_has);
    TRY(c_read);
    TRY(c_read_range);
    TRY(c_view);
    TRY(c_provider);
    TRY(c_puts);
    TRY_AFTER(c_commit, new_store);
    TRY(c_fsck);
    TRY(c_rebuild);
    TRY(c_totals);
    TRY_AFTER(c_store_init, fresh_out);
}

static void tree_calls(void **state)
{
    world *w = *state;
    TRY(c_tree_build);
    TRY(c_tree_code);
}

static void source_calls(void **state)
{
    world *w = *state;
    TRY(c_open_hf);
    TRY(c_open_file);
    TRY(c_open_gguf);
    TRY(c_open_peft);
    TRY(c_adapter);
    TRY_AFTER(c_export_merged, no_out);
    TRY_AFTER(c_export_file, no_out);
    TRY_AFTER(c_export_as_gguf, no_out);
    TRY_AFTER(c_export_gguf_lora, no_out);
    TRY_AFTER(c_export_mixed, no_out);
    TRY_AFTER(c_export_peft, no_out);
    TRY_AFTER(c_export_source, no_out);
    TRY_AFTER(c_export_gguf, no_out);
    TRY(c_lora_spec);
}

static void lineage_calls(void **state)
{
    world *w = *state;
    TRY_AFTER(c_repo_init, no_out);
    TRY(c_repo_open);
    TRY(c_config);
    TRY(c_resolve);
    TRY(c_version_read);
    TRY(c_version_tree);
    TRY_AFTER(c_version_commit, as_at_first);
    TRY_AFTER(c_ref_update, moving_at_base);
    TRY_AFTER(c_ref_delete, moving_at_base);
    TRY(c_ref_each);
    TRY(c_log);
    TRY(c_merge_base);
    TRY(c_diff);
    TRY_AFTER(c_results, as_at_first);
    TRY_AFTER(c_notes, as_at_first);
    TRY(c_repo_fsck);
    TRY(c_repo_rebuild);
    TRY(c_stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_calls),
        cmocka_unit_test(tree_calls),
        cmocka_unit_test(source_calls),
        cmocka_unit_test(lineage_calls),
    };
    fk_use_memory();
    if (getenv("FM_FAULT_ONLY"))
        cmocka_set_test_filter(getenv("FM_FAULT_ONLY"));
    return cmocka_run_group_tests(tests, make_world, end_world);
}
