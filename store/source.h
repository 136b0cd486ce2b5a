/* source.h - foreign model files in and out: HF folders, safetensors, GGUF, adapters of PEFT and of
 * llama.cpp.
 *
 * Opening gives the canonical tree (DESIGN section 2: HF names and HF row order, whatever the
 * format) with ids, and a provider of the bytes; nothing is written. A GGUF's config.json and
 * tokenizer files are synthesized from its metadata; its block types keep their bytes. Of a split
 * one the first part is opened ("x-00001-of-00003.gguf"), and the others lie beside it. Q and K
 * rows that GGUF interleaves for rotary order are put back as whole rows. source/source.json
 * records how to undo this: for each original file its name, size, SHA-256 and the list of pieces
 * (literal bytes, or a tree entry with the row permutation) that give the file back byte for byte.
 * Checkpoints of torch.save are read by formats/torch.h: nothing in them is executed. */
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

/* Detects the kind by content and hashes every byte once. An error names file, field and reason.
 * Links that lead out of a folder are refused, except from a snapshot in Hugging Face's cache to
 * its blobs/. */
FM_CHECKED fm_status fm_source_open(fm_source **out, const char *path);
/* The same for what may be an adapter of a version: a LoRA of llama.cpp's (GGUF) has no names and
 * rows of Hugging Face's without the model.json of its parent (NULL: it is kept as it is). parent
 * and p are not used after the return. FM_EBASE: it is made for another model. */
FM_CHECKED fm_status fm_source_open_for(fm_source **out, const char *path, const fm_tree *parent,
                                        const fm_provider *p);
void fm_source_close(fm_source *src);
bool fm_source_is_adapter(const fm_source *src); /* its tree is fm_adapter_apply's `adapter` */
fm_source_kind fm_source_kind_of(const fm_source *src);
const fm_tree *fm_source_tree(const fm_source *src);  /* borrowed */
fm_provider fm_source_provider(const fm_source *src); /* valid while src is open */
uint64_t fm_source_file_bytes(const fm_source *src);  /* sum of the original files */

/* A folder in the folder that was not imported (git's own, a download cache, a link): its name
 * (untrusted), why, and the bytes of all files in it. In the order of names. */
typedef struct fm_left_out {
    const char *name, *why;
    uint64_t bytes;
} fm_left_out;
const fm_left_out *fm_source_left_out(const fm_source *src, size_t *count); /* borrowed */

/* Why a source is kept as it is: one line that names file and field; NULL: it is understood. Such a
 * version is stored and given back, and does not run. A GGUF is kept under its own names, without
 * model.json; an adapter is kept where its kind or one of its settings is not computed here. */
const char *fm_source_kept(const fm_source *src);

/* Applies an adapter (a tree of its own, entries under adapters/0-<kind>/) to a parent: *out is a
 * copy of parent with the adapter at the next free number and the adapter's source/ in place of the
 * parent's. FM_EBASE names the first module or shape that does not fit; an adapter that is kept and
 * does not run (fm_adapter_config_check) fits every parent. warning (may be NULL) receives a text
 * where base_model_name_or_path differs from base_name. */
FM_CHECKED fm_status fm_adapter_apply(fm_tree **out, const fm_tree *parent, const fm_tree *adapter,
                                      const char *base_name, fm_buf *warning);
/* The same for a parent that p reads: modules are looked for among plain weights where its own are
 * quantized (scaled.h). */
FM_CHECKED fm_status fm_adapter_apply_to(fm_tree **out, const fm_tree *parent,
                                         const fm_provider *p, const fm_tree *adapter,
                                         const char *base_name, fm_buf *warning);

typedef enum fm_export_format {
    FM_EXPORT_SOURCE, /* the imported files, byte for byte; FM_EUNSUPPORTED without source/ */
    FM_EXPORT_HF,     /* config.json, model.safetensors (sharded beyond 5 GB), tokenizer files */
    FM_EXPORT_SAFETENSORS, /* one file */
    FM_EXPORT_PEFT,        /* the topmost adapter as PEFT writes it */
    FM_EXPORT_GGUF,        /* one file; FM_EUNSUPPORTED: GGUF has no words for the model */
    /* Its LoRA adapters as llama.cpp's: one file, or of several a folder of "0-lora.gguf", ...;
     * FM_EUNSUPPORTED: one of them changes the model by more than W + alpha / rank * (B A). */
    FM_EXPORT_GGUF_LORA,
} fm_export_format;

/* dst: a new folder (a file for SAFETENSORS and GGUF, and for a SOURCE that was one file);
 * FM_EEXISTS if it exists. dtype FM_DTYPE_NONE keeps stored types where the format has them and
 * widens block types to F32. HF, SAFETENSORS and GGUF cannot hold adapters, so these are merged
 * into W (W + scale * (B A): a chain of FMAs over ascending rank, one product, one addition, in
 * float32; other kinds: adapted.h). GGUF: block types stay as they are, norms and vectors are F32
 * always. (fm_export_as also mixes block types.) */
FM_CHECKED fm_status fm_export(const fm_tree *tree, const fm_provider *p, const char *dst,
                               fm_export_format format, fm_dtype dtype);

typedef struct fm_view_opts {
    fm_export_format format;
    fm_dtype dtype; /* as of fm_export */
    /* GGUF: llama-quantize's name of a mix of block types, "Q4_K_M"; the file is the very one that
     * llama-quantize makes of the export as F32, but that blocks which are stored in the type that
     * a tensor is to have are copied. dtype is NONE then. NULL: none. */
    const char *mix;
    /* With a mix: an importance matrix, as llama-imatrix writes it, by which llama-quantize would
     * weigh errors; the file has its name as it is here. NULL: none. */
    const char *imatrix;
    /* PEFT: adapter_config.json's base_model_name_or_path and revision in the place of those that
     * are stored; NULL: these stay. */
    const char *base_name, *base_revision;
} fm_view_opts;

bool fm_gguf_mix_known(const char *name); /* NULL is none */

/* fm_export with all of the options. */
FM_CHECKED fm_status fm_export_as(const fm_tree *tree, const fm_provider *p, const char *dst,
                                  const fm_view_opts *opts);

/* A version with the rounding of a file that was written of it, and nothing else of that file's:
 * adapters are merged, each weight has the type that it has in `file`, the tree of the file opened
 * again, and weights that the file leaves out are missing. Where `file` has adapters (a GGUF LoRA
 * on its base), they stay, and their tensors have its types. What rounding alone changes is
 * measured with it. Weights are computed when they are read, and have ids of their own. */
typedef struct fm_rounded fm_rounded;
/* tree and p are borrowed until the close, `file` is not. Fails as fm_export to GGUF does. */
FM_CHECKED fm_status fm_rounded_open(fm_rounded **out, const fm_tree *tree, const fm_provider *p,
                                     const fm_tree *file);
void fm_rounded_close(fm_rounded *r); /* NULL is fine */
const fm_tree *fm_rounded_tree(const fm_rounded *r);
fm_provider fm_rounded_provider(const fm_rounded *r); /* thread-safe if p is */

/* Writes the one imported file whose SHA-256 source.json gives so, byte for byte, to dst, a new
 * file. FM_ENOTFOUND: no file has it; FM_EUNSUPPORTED: the version was changed since it was
 * imported. */
FM_CHECKED fm_status fm_export_file(const fm_tree *tree, const fm_provider *p,
                                    const fm_digest *sha256, const char *dst);

/* The checks that fm_export makes before it writes, for each format that applies to the tree:
 * names, pieces and sizes of source.json, model.json, the adapters' folders, configs and shapes.
 * Reads these files and no tensor. FM_OK also where a format cannot hold such a model. */
FM_CHECKED fm_status fm_export_check(const fm_tree *tree, const fm_provider *p);

/* Merges the LoRA (a [r, in], b [out, r], both f32) into w [out, in], f32, in place. */
void fm_lora_merge(float *w, const float *a, const float *b, uint64_t out, uint64_t in, uint64_t r,
                   float scale);

/* FM_EUNSUPPORTED names the field of an adapter_config.json that changes what a model computes and
 * is not computed here, or is not known; or the kind, of the folder ("lora"), that does not run.
 * what: for the message. */
FM_CHECKED fm_status fm_adapter_config_check(const fm_json *config, const char *kind,
                                             const char *what);

/* Rank and scale of one module by an adapter_config.json, with rank_pattern, alpha_pattern and
 * rslora resolved. module: "model.layers.1.self_attn.q_proj". */
typedef struct fm_lora_spec {
    uint32_t r;
    float scale;  /* alpha / r, or alpha / sqrt(r) */
    double alpha; /* scale * r */
} fm_lora_spec;
FM_CHECKED fm_status fm_lora_spec_of(fm_lora_spec *out, const fm_json *adapter_config,
                                     const char *module);

FM_END_DECLS
#endif
