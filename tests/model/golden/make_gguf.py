#!/usr/bin/env python3
"""Tiny random models as llama.cpp's own converter writes them, with Hugging Face's log-probabilities.

usage: make_gguf.py OUT_DIR LLAMA_CPP      made with torch 2.15, transformers 5.23, the llama.cpp of llama-cpp-python 0.3.36
OUT/<name>.gguf (matrices bfloat16, norms F32) and OUT/logprobs.jsonl: {"name", "config", "ids", "logprobs"}, float32, eager attention;
config is the folder's config.json; of encoders, which have a vocabulary too, "embedding" (pooled, normalised). OUT/gpt2, roberta: their folders.
"""
import json, logging, os, pathlib, shutil, sys, tempfile
out, llama = sys.argv[1:3]
sys.path[:0] = [llama, os.path.join(llama, "gguf-py")]
logging.basicConfig(level=logging.ERROR)
import gguf, torch
from safetensors.torch import load_file, save_file
import transformers as tf
import conversion

torch.set_num_threads(1)
V, T = 48, 14
base = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
dec = dict(base, intermediate_size=24, num_key_value_heads=1)
gpt = dict(vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2)
fal = dict(vocab_size=V, hidden_size=16, ffn_hidden_size=64, num_attention_heads=2, num_hidden_layers=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2)
def rope(**kw): return dict(rope_theta=100.0, **kw)
def rope10k(**kw): return dict(rope_type="default", rope_theta=10000.0, **kw) # the only base that these files have
A = {
 "llama": tf.LlamaConfig(**dec, attention_bias=True, rope_parameters=rope(rope_type="linear", factor=2.0)),
 "mistral": tf.MistralConfig(**dec, sliding_window=None),
 "qwen2": tf.Qwen2Config(**dec),
 "qwen3": tf.Qwen3Config(**dec, head_dim=8),
 "mixtral": tf.MixtralConfig(**dec, num_local_experts=3, num_experts_per_tok=2),
 "qwen2moe": tf.Qwen2MoeConfig(**dec, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=20),
 "qwen3moe": tf.Qwen3MoeConfig(**dec, head_dim=8, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True),
 "gemma2": tf.Gemma2Config(**dec, head_dim=8, sliding_window=6, query_pre_attn_scalar=8, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
 "gemma3": tf.Gemma3TextConfig(**dict(dec, num_hidden_layers=7), head_dim=8, sliding_window=6, query_pre_attn_scalar=8,
    rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000.0), "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}),
 "phi3": tf.Phi3Config(**dec, sliding_window=6),
 "phi3-longrope": tf.Phi3Config(**dict(dec, max_position_embeddings=256), original_max_position_embeddings=64, rope_parameters=rope(rope_type="longrope",
    short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.0, 3.0], partial_rotary_factor=0.75)),
 "granite": tf.GraniteConfig(**dec, embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=8.0),
 "olmo2": tf.Olmo2Config(**dec),
 "smollm3": tf.SmolLM3Config(**dict(dec, num_hidden_layers=4)),
 "stablelm": tf.StableLmConfig(**dec, use_qkv_bias=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.25)),
 "starcoder2": tf.Starcoder2Config(**dec, sliding_window=None),
 "arcee": tf.ArceeConfig(**dec),
 "ministral3": tf.Ministral3Config(**dec, head_dim=8, rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5,
    mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
 "internlm3": tf.InternLM3Config(**dec, head_dim=8, attention_bias=True, mlp_bias=True),
 "gemma": tf.GemmaConfig(**dec, head_dim=12),
 "phi2": tf.PhiConfig(**dict(dec, intermediate_size=64, num_key_value_heads=2), rope_parameters=rope10k(partial_rotary_factor=0.5)),
 "olmo": tf.OlmoConfig(**dec),
 "olmo3": tf.Olmo3Config(**dec, sliding_window=6, layer_types=["full_attention", "sliding_attention"], rope_parameters={"full_attention": rope(rope_type="yarn", factor=4.0,
    original_max_position_embeddings=16, attention_factor=1.138629436111989), "sliding_attention": rope(rope_type="default")}),
 "olmoe": tf.OlmoeConfig(**dict(dec, num_key_value_heads=2), num_experts=3, num_experts_per_tok=2),
 "command-r": tf.CohereConfig(**dec, logit_scale=0.3, rope_parameters=rope(rope_type="default")),
 "cohere2": tf.Cohere2Config(**dict(dec, num_hidden_layers=4), sliding_window=6),
 "exaone4": tf.Exaone4Config(**dec, sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True),
 "seed_oss": tf.SeedOssConfig(**dec, head_dim=12, attention_bias=True),
 "chatglm": tf.GlmConfig(**dict(dec, max_position_embeddings=16), head_dim=8, rms_norm_eps=1e-5, rope_parameters=rope10k(partial_rotary_factor=0.5)),
 "glm4": tf.Glm4Config(**dec, head_dim=12, attention_bias=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "ernie4_5": tf.Ernie4_5Config(**dec, head_dim=12),
 "hunyuan-dense": tf.HunYuanDenseV1Config(**dec, head_dim=8),
 "nemotron": tf.NemotronConfig(**dec, mlp_bias=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "jais2": tf.Jais2Config(**dec, head_dim=12),
 "gpt2": tf.GPT2Config(**gpt, n_inner=64),
 "starcoder": tf.GPTBigCodeConfig(**gpt, n_inner=64),
 "gptneox": tf.GPTNeoXConfig(**base, intermediate_size=24, rope_parameters=rope10k(partial_rotary_factor=0.5)),
 "falcon": tf.FalconConfig(**fal, multi_query=True),
 "falcon-groups": tf.FalconConfig(**dict(fal, num_attention_heads=4), new_decoder_architecture=True, num_kv_heads=2),
 "falcon-one-norm": tf.FalconConfig(**fal, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, tie_word_embeddings=False),
}
# What the converter still looks for under the names of older configs.
OLD = {"cohere2": {"rotary_pct": 1.0}, "gptneox": {"rotary_pct": 0.5}, "gpt2": {"n_ctx": 64}, "falcon": {"num_kv_heads": 1}}
FOLDERS = {"gpt2", "roberta"} # kept beside: a GGUF comes back as another architecture
def keep(name, d):
    if name not in FOLDERS: return
    os.makedirs(os.path.join(out, name), exist_ok=True)
    w = {k: v.bfloat16() for k, v in load_file(d / "model.safetensors").items()}
    save_file(w, os.path.join(out, name, "model.safetensors"), metadata={"format": "pt"})
    shutil.copy(d / "config.json", os.path.join(out, name))
bert = dict(vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64)
E = {
 "bert": (tf.BertConfig(**bert), "cls"),
 "distilbert": (tf.DistilBertConfig(vocab_size=V, dim=16, hidden_dim=24, n_layers=2, n_heads=2, max_position_embeddings=64), None),
 "roberta": (tf.RobertaConfig(**bert, type_vocab_size=1), None),
 "nomic-bert": (tf.NomicBertConfig(**bert, head_dim=8, rope_parameters=rope(rope_type="default")), "mean"),
}
OLD["nomic-bert"] = dict(n_positions=8192, activation_function="swiglu", causal=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, prenorm=False,
    rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None)
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
letters = [chr(97 + i) for i in range(26)]
def sequence(id): return {"Sequence": {"id": id, "type_id": 0}}
def token(id): return {"SpecialToken": {"id": id, "type_id": 0}}
def wordpiece(d):
    vocab = (special + letters + ["##" + c for c in letters])[:V]
    post = {"type": "TemplateProcessing", "single": [token("[CLS]"), sequence("A"), token("[SEP]")],
            "pair": [token("[CLS]"), sequence("A"), token("[SEP]"), sequence("B"), token("[SEP]")],
            "special_tokens": {t: {"id": t, "ids": [special.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")}}
    json.dump({"version": "1.0", "truncation": None, "padding": None,
               "added_tokens": [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                                for i, t in enumerate(special)],
               "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
               "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": post, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
               "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                         "vocab": {t: i for i, t in enumerate(vocab)}}}, open(d / "tokenizer.json", "w"))
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
               "mask_token": "[MASK]"}, open(d / "tokenizer_config.json", "w"))
def pooling(d, mode):
    os.makedirs(d / "1_Pooling")
    json.dump({"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}, open(d / "1_Pooling" / "config.json", "w"))
    json.dump([{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
               {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}], open(d / "modules.json", "w"))
ids = torch.randint(3, V, (1, T), generator=torch.Generator().manual_seed(1))
lines = []
def model(cfg, encoder):
    torch.manual_seed(0)
    extra = {} if cfg.model_type == "distilbert" else {"add_pooling_layer": False}
    m = tf.AutoModel.from_config(cfg, attn_implementation="eager", **extra) if encoder else tf.AutoModelForCausalLM.from_config(cfg, attn_implementation="eager")
    m = m.float().eval()
    g = torch.Generator().manual_seed(2)
    for n, p in m.named_parameters(): p.data += 0.12 * torch.randn(p.shape, generator=g)
    if getattr(cfg, "tie_word_embeddings", False): m.tie_weights()
    for p in m.parameters(): p.data = p.data.bfloat16().float()
    return m
def convert(d, name, **more):
    hp = conversion.base.ModelBase.load_hparams(d, False) | OLD.get(name, {})
    cls = conversion.get_model_class(hp["architectures"][0])
    for k, v in more.items(): setattr(cls, k, v)
    with torch.inference_mode():
        cls(d, gguf.LlamaFileType.MOSTLY_BF16, pathlib.Path(out) / (name + ".gguf"), eager=True, hparams=hp, model_name="tiny").write()
for name, cfg in A.items():
    m = model(cfg, False)
    with torch.inference_mode():
        logp = torch.log_softmax(m(input_ids=ids).logits[0].double(), -1)
    d = pathlib.Path(tempfile.mkdtemp())
    m.save_pretrained(d)
    config = json.load(open(d / "config.json"))
    lines.append({"name": name, "config": config, "ids": ids[0].tolist(), "logprobs": [float(logp[i, ids[0, i + 1]]) for i in range(T - 1)]})
    keep(name, d)
    json.dump({"model": {"vocab": {str(i): i for i in range(V)}}, "added_tokens": []}, open(d / "tokenizer.json", "w"))
    convert(d, name, set_vocab=lambda self: None) # a random model has no vocabulary
    shutil.rmtree(d)
for name, (cfg, mode) in E.items():
    m = model(cfg, True)
    with torch.inference_mode():
        h = m(input_ids=ids).last_hidden_state[0].double()
    e = h[0] if mode == "cls" else h.mean(0)
    d = pathlib.Path(tempfile.mkdtemp())
    m.save_pretrained(d)
    lines.append({"name": name, "config": json.load(open(d / "config.json")), "ids": ids[0].tolist(), "embedding": (e / e.norm()).tolist()})
    keep(name, d)
    wordpiece(d)
    if mode: pooling(d, mode)
    types = lambda self: self.gguf_writer.add_token_type_count(1) # a byte-level vocabulary would need its merges
    convert(d, name, **{"set_vocab": types} if name == "roberta" else {"get_vocab_base_pre": lambda self, t: "default"})
    shutil.rmtree(d)
with open(os.path.join(out, "logprobs.jsonl"), "w") as f:
    for l in lines: f.write(json.dumps(l) + "\n")
