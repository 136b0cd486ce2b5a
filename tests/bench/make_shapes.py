"""Models of other shapes than SmolLM2's, of random weights, for time alone.

usage: make_shapes.py SMOLLM2.gguf OUT.gguf 1b|4b

Writes bf16 tensors of a llama architecture: 1b is Llama 3.2 1B's shape, 4b Qwen3 4B's (without its
norms of heads), both with SmolLM2's vocabulary and tokenizer, so that the product by the vocabulary
is smaller than theirs. llama-quantize makes the other types of it (build_llama.sh).
"""
import sys

import gguf
import numpy as np

SHAPES = {  # layers, hidden, heads, heads of keys, head size, width of the MLP
    "1b": (16, 2048, 32, 8, 64, 8192),
    "4b": (36, 2560, 32, 8, 128, 9728),
}


def copy_tokenizer(out, path):
    for field in gguf.GGUFReader(path).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        value, of = field.contents(), field.types[-1]
        if kind == gguf.GGUFValueType.ARRAY:
            out.add_key_value(field.name, value, kind, sub_type=of)
        else:
            out.add_key_value(field.name, value, kind)


def main():
    stem, path, name = sys.argv[1:]
    layers, hidden, heads, kv, head, inter = SHAPES[name]
    vocab = len(gguf.GGUFReader(stem).fields["tokenizer.ggml.tokens"].data)
    out = gguf.GGUFWriter(path, "llama")
    out.add_name(f"shape-{name}")
    out.add_context_length(8192)
    out.add_embedding_length(hidden)
    out.add_block_count(layers)
    out.add_feed_forward_length(inter)
    out.add_head_count(heads)
    out.add_head_count_kv(kv)
    out.add_key_length(head)
    out.add_value_length(head)
    out.add_rope_dimension_count(head)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(vocab)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    copy_tokenizer(out, stem)
    shapes = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_norm.weight": (hidden,), f"blk.{i}.ffn_norm.weight": (hidden,),
                   f"blk.{i}.attn_q.weight": (heads * head, hidden),
                   f"blk.{i}.attn_k.weight": (kv * head, hidden),
                   f"blk.{i}.attn_v.weight": (kv * head, hidden),
                   f"blk.{i}.attn_output.weight": (hidden, heads * head),
                   f"blk.{i}.ffn_gate.weight": (inter, hidden),
                   f"blk.{i}.ffn_up.weight": (inter, hidden),
                   f"blk.{i}.ffn_down.weight": (hidden, inter)}
    random = np.random.default_rng(1)
    for key, shape in shapes.items():
        if len(shape) == 1:
            out.add_tensor_info(key, shape, np.dtype(np.float32), shape[0] * 4)
        else:
            out.add_tensor_info(key, (shape[0], 2 * shape[1]), np.dtype(np.uint8),
                                2 * shape[0] * shape[1], raw_dtype=gguf.GGMLQuantizationType.BF16)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    for shape in shapes.values():
        if len(shape) == 1:
            out.write_tensor_data(np.ones(shape, np.float32))
            continue
        x = random.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        out.write_tensor_data((x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))
    out.close()


if __name__ == "__main__":
    main()
