/* source.h - foreign model files in and out: HF folders, safetensors, GGUF, PEFT adapters.
 *
 * Opening gives the canonical tree (DESIGN section 2: HF names, HF row order, whatever came in)
 * with ids, and a provider of the bytes; nothing is written. A GGUF's config.json and tokenizer
 * files are synthesized from its metadata; its block types keep their bytes. Q and K rows that
 * GGUF interleaves for rotary order are put back as whole rows. source/source.json holds what
 * undoes it: for each original file its name, size, whole-file SHA-256 and the list of pieces
 * (literal bytes, or a tree entry with the row permutation) that give the file back byte for
 * byte. Checkpoints of torch.save are read by formats/torch.h: nothing in them is executed. */
#ifndef FM_STORE_SOURCE_H
#define FM_STORE_SOURCE_H

#include "store/tree.h"

FM_BEGIN_DECLS

typedef enum fm_source_kind {
    FM_SOURCE_HF, /* folder with config.json and weights: *.safetensors, pytorch_model*.bin */
    FM_SOURCE_SAFETENSORS, /* one file: no config, tensors alone */
    FM_SOURCE_GGUF,
    FM_SOURCE_PEFT,  /* folder with adapter_config.json and adapter_model.safetensors or .bin */
    FM_SOURCE_TORCH, /* one .bin, .pt or .pth of torch.save: tensors alone */
} fm_source_kind;

typedef struct fm_source fm_source; /* immutable once open; provider is thread-safe */

/* Detects by content. Hashes every byte once. Refuses with file, field, reason; of a folder also links
 * that lead out of it, but those of a snapshot in Hugging Face's cache into its blobs/. */
FM_CHECKED fm_status fm_source_open(fm_source **out, const char *path);
void fm_source_close(fm_source *src);
fm_source_kind fm_source_kind_of(const fm_source *src);
const fm_tree *fm_source_tree(const fm_source *src);  /* borrowed */
fm_provider fm_source_provider(const fm_source *src); /* valid while src is open */
uint64_t fm_source_file_bytes(const fm_source *src);  /* sum of the original files */

/* What of a folder was not taken, in the order of names: a stranger's name, and why in words. */
typedef struct fm_left_out {
    const char *name, *why;
} fm_left_out;
const fm_left_out *fm_source_left_out(const fm_source *src, size_t *count); /* borrowed */

/* An adapter (its own tree, entries under adapters/0-<kind>/) laid on a parent: a copy of parent
 * with the adapter at the next free number, the parent's source/ replaced by the adapter's.
 * FM_EBASE names the first module or shape that does not fit. warning (may be NULL) receives
 * text when
 * base_model_name_or_path differs from base_name; else stays empty. */
FM_CHECKED fm_status fm_adapter_apply(fm_tree **out, const fm_tree *parent, const fm_tree *adapter,
                                      const char *base_name, fm_buf *warning);

typedef enum fm_export_format {
    FM_EXPORT_SOURCE, /* the very bytes that came in; FM_EUNSUPPORTED where there is no source/ */
    FM_EXPORT_HF,     /* config.json, model.safetensors (sharded beyond 5 GB), tokenizer files */
    FM_EXPORT_SAFETENSORS, /* one file */
    FM_EXPORT_PEFT,        /* the topmost adapter as PEFT writes it */
} fm_export_format;

/* dst: a new folder (or file for SAFETENSORS and for a SOURCE that was one file); FM_EEXISTS if
 * there. dtype FM_DTYPE_NONE keeps stored types where the format has them and widens block types
 * to F32. Adapters are merged into W for HF and SAFETENSORS (W + scale * (B A): chain of FMAs over
 * ascending rank, one product, one addition, in float32), since those formats cannot hold them. */
FM_CHECKED fm_status fm_export(const fm_tree *tree, const fm_provider *p, const char *dst,
                               fm_export_format format, fm_dtype dtype);

/* What fm_export looks at before it writes, for the formats that the tree has: names, pieces and
 * sizes of source.json, model.json, the adapters' folders, configs and shapes. Reads those files
 * and no tensor. FM_OK also where a format cannot hold such a model. */
FM_CHECKED fm_status fm_export_check(const fm_tree *tree, const fm_provider *p);

/* Merge the LoRA (a [r, in], b [out, r], both f32) into w [out, in] f32 in place. */
void fm_lora_merge(float *w, const float *a, const float *b, uint64_t out, uint64_t in, uint64_t r,
                   float scale);

/* What an adapter_config.json says of one module, with rank_pattern, alpha_pattern, rslora
 * resolved. module: "model.layers.1.self_attn.q_proj". */
typedef struct fm_lora_spec {
    uint32_t r;
    float scale; /* alpha / r, or alpha / sqrt(r) */
} fm_lora_spec;
FM_CHECKED fm_status fm_lora_spec_of(fm_lora_spec *out, const fm_json *adapter_config,
                                     const char *module);

FM_END_DECLS
#endif
