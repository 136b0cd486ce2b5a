#!/usr/bin/env python3
"""Tiny random models of the families and rotary kinds that ../shared/data/arch lacks, with Hugging Face's float32 logits (encoders: states).

usage: make_arch.py OUT_DIR [NAME..]        made with torch 2.15, transformers 5.23
OUT/<name>/config.json, model.safetensors (bfloat16), ref.safetensors: input_ids [T] i32, logits [T, V] or hidden [T, H] f32;
of later families also greedy [12] i32: the most likely tokens behind the first 8.
Of encoder-decoders: source [S] i32, states [S, H] of the encoder; input_ids are the decoder's, greedy stands behind its first tokens.
The weights are rounded to bfloat16 first and computed with in float32, so config.json says float32.
"""
import json, os, sys, torch
from safetensors.torch import save_file, load_file
import transformers as tf

out, only = sys.argv[1], sys.argv[2:]
torch.set_num_threads(1)
V, H, T = 48, 32, 40
base = dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
dec = dict(base, intermediate_size=40, num_key_value_heads=2)
one = dict(dec, num_hidden_layers=1, hidden_size=16, intermediate_size=24, head_dim=8, num_attention_heads=2, num_key_value_heads=1)
moe = dict(dec, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12)
def rope(**kw): return dict(rope_theta=100.0, **kw)
A = {
 "gemma2": tf.Gemma2Config(**dec, head_dim=8, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
 "gemma3-linear": tf.Gemma3TextConfig(**dec, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=16,
    rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1000.0), "sliding_attention": dict(rope_type="default", rope_theta=50.0)}),
 "qwen2-mixed": tf.Qwen2Config(**dec, use_sliding_window=True, sliding_window=8, max_window_layers=1, tie_word_embeddings=True),
 "qwen2_moe": tf.Qwen2MoeConfig(**dec, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=20, norm_topk_prob=False),
 "qwen3_moe": tf.Qwen3MoeConfig(**dict(moe, num_hidden_layers=3), head_dim=8, norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1),
 "phi3": tf.Phi3Config(**dec, sliding_window=16),
 "phi3-longrope": tf.Phi3Config(**dict(dec, max_position_embeddings=256), original_max_position_embeddings=64, rope_parameters=rope(rope_type="longrope",
    short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.0, 3.0], partial_rotary_factor=0.75)),
 "gpt_neox": tf.GPTNeoXConfig(**base, intermediate_size=40, rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.25)),
 "gpt_neox-sequential": tf.GPTNeoXConfig(**base, intermediate_size=40, use_parallel_residual=False, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "roberta": tf.RobertaConfig(**dict(base, pad_token_id=1, bos_token_id=0), intermediate_size=40, type_vocab_size=1),
 "granite": tf.GraniteConfig(**dec, embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=8.0),
 "olmo2": tf.Olmo2Config(**dec),
 "smollm3": tf.SmolLM3Config(**dict(dec, num_hidden_layers=4)),
 "stablelm": tf.StableLmConfig(**dec, use_qkv_bias=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.25)),
 "starcoder2": tf.Starcoder2Config(**dec, sliding_window=16),
 "llama-gelu": tf.LlamaConfig(**one, hidden_act="gelu"),
 "llama-linear": tf.LlamaConfig(**one, rope_parameters=rope(rope_type="linear", factor=4.0)),
 "llama-dynamic": tf.LlamaConfig(**one, rope_parameters=rope(rope_type="dynamic", factor=4.0)),
 "llama-yarn": tf.LlamaConfig(**one, rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
 "llama-yarn-mscale": tf.LlamaConfig(**one, rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, truncate=False, beta_fast=4.0,
    beta_slow=0.5, mscale=0.7, mscale_all_dim=0.3)),
}
# Families of a later day: half as wide. Settings are mostly not the defaults, which defaults.json compares.
sm = dict(base, hidden_size=16, intermediate_size=24, num_key_value_heads=2)
few = dict(sm, head_dim=8, num_attention_heads=2, num_key_value_heads=1)
fal = dict(vocab_size=V, hidden_size=16, ffn_hidden_size=24, num_attention_heads=4, num_hidden_layers=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
delta = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=6, linear_conv_kernel_dim=3,
    layer_types=["linear_attention", "full_attention", "linear_attention"], rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5))
ssm = dict(mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=6, mamba_d_conv=3, mamba_chunk_size=8)
fal_h1 = dict(embedding_multiplier=3.0, lm_head_multiplier=0.6, mlp_multipliers=[0.7, 1.4], key_multiplier=0.8, attention_in_multiplier=1.3,
    attention_out_multiplier=0.9, ssm_multipliers=[0.6, 1.2, 0.7, 1.5, 0.8], ssm_in_multiplier=1.25, ssm_out_multiplier=0.55)
nemo = dict(ssm_state_size=6, mamba_num_heads=4, mamba_head_dim=6, n_groups=2, conv_kernel=3, chunk_size=8, time_step_min=0.5)
nemo_moe = dict(n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, moe_shared_expert_intermediate_size=20, routed_scaling_factor=1.5)
some = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=12)
state = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
slides = ["sliding_attention", "full_attention"]
g4 = dict(sm, num_attention_heads=6, head_dim=8, sliding_window=8, num_hidden_layers=6)
g4_types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
g4_rope = {"sliding_attention": dict(rope_type="default", rope_theta=50.0), "full_attention": dict(rope_type="proportional", partial_rotary_factor=0.5,
    rope_theta=1000.0)}
eye = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
qwen_eye = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=4, out_hidden_size=16, fullatt_block_indexes=[0])
later = {
 "phi3-long": tf.Phi3Config(**dict(few, max_position_embeddings=64), original_max_position_embeddings=16, rope_parameters=rope(rope_type="longrope",
    short_factor=[1.0, 1.1, 1.3, 1.4], long_factor=[1.0, 2.0, 3.0, 3.5], partial_rotary_factor=1.0)),
 "qwen3-base": tf.Qwen3Config(**few, tie_word_embeddings=False),
 "gemma": tf.GemmaConfig(**few, attention_bias=True),
 "gemma-untied": tf.GemmaConfig(**few, tie_word_embeddings=False, rope_parameters=rope(rope_type="linear", factor=2.0)),
 "ministral": tf.MinistralConfig(**few, sliding_window=8, layer_types=slides),
 "ministral3": tf.Ministral3Config(**few, rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=40, beta_fast=4.0, beta_slow=0.5,
    mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
 "ministral3-long": tf.Ministral3Config(**few, rope_parameters=rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=7, beta_fast=4.0, beta_slow=0.5,
    llama_4_scaling_beta=0.4)),
 "llama4": tf.Llama4TextConfig(**dict(sm, num_hidden_layers=5, head_dim=6, num_attention_heads=6), intermediate_size_mlp=20, num_local_experts=3, num_experts_per_tok=1,
    interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1, 1, 0], attention_chunk_size=11, floor_scale=6, attn_scale=0.3, tie_word_embeddings=False,
    rope_parameters=rope(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
 "llama4-sight": tf.Llama4Config(text_config=dict(few, model_type="llama4_text", num_hidden_layers=4, intermediate_size_mlp=20, num_local_experts=5,
    num_experts_per_tok=2, moe_layers=[0, 3], use_qk_norm=False, attention_bias=True, attention_chunk_size=9, attn_temperature_tuning=False,
    rope_parameters=rope(rope_type="default")), vision_config=dict(hidden_size=8, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    image_size=8, patch_size=4, vision_output_dim=8, projector_input_dim=8, projector_output_dim=8), tie_word_embeddings=False),
 "mistral3": tf.Mistral3Config(text_config=dict(few, model_type="ministral3", rope_parameters=rope(rope_type="yarn", factor=4.0,
    original_max_position_embeddings=64, llama_4_scaling_beta=0.1)), vision_config=dict(eye, model_type="pixtral"), tie_word_embeddings=False),
 "qwen2_5_vl": tf.Qwen2_5_VLConfig(text_config=dict(sm, model_type="qwen2_5_vl_text", rope_parameters=rope(rope_type="default", mrope_section=[1, 1, 0])),
    vision_config=qwen_eye),
 "olmo3": tf.Olmo3Config(**sm, sliding_window=8, layer_types=slides, rope_parameters={"full_attention": dict(rope_type="yarn", factor=4.0,
    original_max_position_embeddings=16, attention_factor=1.2, rope_theta=1000.0), "sliding_attention": dict(rope_type="default", rope_theta=50.0)}),
 "olmoe": tf.OlmoeConfig(**sm, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True),
 "exaone4": tf.Exaone4Config(**few, sliding_window=8, layer_types=slides),
 "seed_oss": tf.SeedOssConfig(**few, attention_out_bias=True, mlp_bias=True),
 "olmo": tf.OlmoConfig(**sm, attention_bias=True),
 "cohere": tf.CohereConfig(**sm, attention_bias=True, logit_scale=0.3, rope_parameters=rope(rope_type="default")),
 "cohere-untied": tf.CohereConfig(**sm, tie_word_embeddings=False),
 "cohere2": tf.Cohere2Config(**sm, sliding_window=8, layer_types=slides),
 "glm": tf.GlmConfig(**few, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "glm4": tf.Glm4Config(**few, attention_bias=False, tie_word_embeddings=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=1.0)),
 "ernie4_5": tf.Ernie4_5Config(**few, use_bias=True, rope_parameters=rope(rope_type="default")),
 "helium": tf.HeliumConfig(**few, attention_bias=True, mlp_bias=True, rope_parameters=rope(rope_type="default")),
 "hunyuan_v1_dense": tf.HunYuanDenseV1Config(**few, attention_bias=True, tie_word_embeddings=True, rope_parameters=rope(rope_type="dynamic", alpha=3.0, factor=1.0)),
 "arcee": tf.ArceeConfig(**few, mlp_bias=True),
 "nemotron": tf.NemotronConfig(**few, attention_bias=True, mlp_bias=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "phi": tf.PhiConfig(**dict(sm, hidden_size=32), rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "phi-tied": tf.PhiConfig(**sm, tie_word_embeddings=True, rope_parameters=rope(rope_type="default", partial_rotary_factor=1.0)),
 "gptj": tf.GPTJConfig(vocab_size=V, n_embd=32, n_head=4, n_layer=2, n_inner=24, n_positions=64, rotary_dim=4, bos_token_id=1, eos_token_id=2),
 "gpt_bigcode": tf.GPTBigCodeConfig(vocab_size=V, n_embd=16, n_head=4, n_layer=2, n_inner=24, n_positions=64, bos_token_id=1, eos_token_id=2),
 "gpt_bigcode-heads": tf.GPTBigCodeConfig(vocab_size=V, n_embd=16, n_head=4, n_layer=2, n_inner=24, n_positions=64, bos_token_id=1, eos_token_id=2, multi_query=False,
    tie_word_embeddings=False),
 "opt": tf.OPTConfig(vocab_size=V, hidden_size=16, ffn_dim=24, num_attention_heads=4, num_hidden_layers=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    pad_token_id=0),
 "falcon": tf.FalconConfig(**fal, rope_parameters=rope(rope_type="default")),
 "falcon-groups": tf.FalconConfig(**fal, new_decoder_architecture=True, num_kv_heads=2, bias=True, tie_word_embeddings=False),
 "falcon-groups-one-norm": tf.FalconConfig(**fal, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
 "falcon-heads": tf.FalconConfig(**fal, multi_query=False, parallel_attn=False),
 "distilbert": tf.DistilBertConfig(vocab_size=V, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=64, activation="relu"),
 "electra": tf.ElectraConfig(**dict(base, hidden_size=16), embedding_size=16, intermediate_size=24),
 "nomic_bert": tf.NomicBertConfig(**dict(base, hidden_size=16), intermediate_size=24, head_dim=8, rope_parameters=rope(rope_type="default")),
 "vaultgemma": tf.VaultGemmaConfig(**few, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
 "jais2": tf.Jais2Config(**few),
 "hyperclovax": tf.HyperCLOVAXConfig(**few, embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=0.3, mlp_bias=True),
 "hyperclovax-plain": tf.HyperCLOVAXConfig(**few, use_post_norm=False, attention_multiplier=0.3, tie_word_embeddings=True),
 "lfm2": tf.Lfm2Config(**dict(few, num_hidden_layers=3), layer_types=["conv", "full_attention", "conv"], conv_L_cache=4,
    conv_bias=True, block_multiple_of=8, block_ffn_dim_multiplier=1.3),
 "lfm2-plain": tf.Lfm2Config(**dict(few, num_hidden_layers=2), full_attn_idxs=[0], block_auto_adjust_ff_dim=False, tie_word_embeddings=False),
 "qwen3_next": tf.Qwen3NextConfig(**dict(few, num_hidden_layers=3), **delta, **some),
 "qwen3_5": tf.Qwen3_5TextConfig(**few, **dict(delta, layer_types=["linear_attention", "full_attention"]), tie_word_embeddings=True),
 "qwen3_5_moe": tf.Qwen3_5MoeTextConfig(**few, **dict(delta, layer_types=["linear_attention", "full_attention"]), **some),
 "qwen3_5_vl": tf.Qwen3_5Config(text_config=dict(few, **dict(delta, layer_types=["linear_attention", "full_attention"]), model_type="qwen3_5_text"),
    vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=4, out_hidden_size=16, num_position_embeddings=16)),
 "bamba": tf.BambaConfig(**sm, **ssm, attn_layer_indices=[1], attention_bias=True, mlp_bias=True),
 "granitemoehybrid": tf.GraniteMoeHybridConfig(**dict(sm, num_hidden_layers=3), **ssm, layer_types=["mamba", "attention", "mamba"], num_local_experts=0,
    num_experts_per_tok=0, shared_intermediate_size=12, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.5, logits_scaling=2.0),
 "granitemoehybrid-rope": tf.GraniteMoeHybridConfig(**sm, **dict(ssm, mamba_proj_bias=True), layer_types=["mamba", "attention"], num_local_experts=0,
    num_experts_per_tok=0, shared_intermediate_size=12, position_embedding_type="rope", rope_parameters=rope(rope_type="default"), tie_word_embeddings=True),
 "granitemoehybrid-experts": tf.GraniteMoeHybridConfig(**dict(sm, num_hidden_layers=3), **ssm, layer_types=["mamba", "attention", "mamba"], num_local_experts=5,
    num_experts_per_tok=2, shared_intermediate_size=12, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.5, logits_scaling=2.0),
 "nemotron_h": tf.NemotronHConfig(**few, layers_block_type=["mamba", "mlp", "attention", "mamba", "mlp"], **nemo, use_bias=True, mlp_bias=True),
 "nemotron_h-experts": tf.NemotronHConfig(**few, layers_block_type=["mamba", "moe", "attention", "moe", "mlp"], **dict(nemo, mamba_num_heads=6, time_step_min=0.001), **nemo_moe,
    n_group=3, topk_group=2),
 "nemotron_h-latent": tf.NemotronHConfig(**few, layers_block_type=["moe", "mamba", "attention", "moe"], **dict(nemo, n_groups=1, use_conv_bias=False), **nemo_moe,
    moe_latent_size=20, norm_topk_prob=False, tie_word_embeddings=True),
 "falcon_h1": tf.FalconH1Config(**dict(sm, num_key_value_heads=1), **dict(ssm, mamba_d_head=6, mamba_d_ssm=24, mamba_proj_bias=True), **fal_h1, mamba_rms_norm=True,
    mamba_norm_before_gate=True, attention_bias=True, mlp_bias=True, rope_parameters=rope(rope_type="default")),
 "falcon_h1-gate": tf.FalconH1Config(**sm, **dict(ssm, mamba_d_ssm=None), **fal_h1, mamba_rms_norm=True, mamba_norm_before_gate=False, projectors_bias=True,
    rope_parameters=rope(rope_type="default")),
 "falcon_h1-bare": tf.FalconH1Config(**dict(few, num_hidden_layers=3), **dict(ssm, mamba_d_head="auto", mamba_d_ssm=20, mamba_conv_bias=False, time_step_limit=(0.3, 1.5)),
    mamba_rms_norm=False, tie_word_embeddings=True, rope_parameters=rope(rope_type="default")),
 "mamba": tf.MambaConfig(**state, state_size=5, conv_kernel=3, use_bias=True, time_step_rank=3),
 "mamba2": tf.Mamba2Config(**state, num_heads=4, head_dim=8, state_size=6, n_groups=2, conv_kernel=3, chunk_size=8, time_step_limit=(0.3, 1.5)),
 "mamba2-plain": tf.Mamba2Config(**state, num_heads=2, head_dim=16, state_size=4, n_groups=1, use_bias=True, use_conv_bias=False, tie_word_embeddings=True),
 "internlm3": tf.InternLM3Config(**few, attention_bias=True, mlp_bias=True),
 "deepseek_v2": tf.DeepseekV2Config(**dict(sm, num_key_value_heads=4, num_hidden_layers=3), n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12,
    n_shared_experts=2, n_group=3, topk_group=2, topk_method="group_limited_greedy", routed_scaling_factor=1.5, first_k_dense_replace=1, kv_lora_rank=10, q_lora_rank=12,
    qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7, attention_bias=True, rope_parameters=rope(rope_type="yarn", factor=4.0,
    original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.7)),
 "deepseek_v2-lite": tf.DeepseekV2Config(**dict(sm, num_key_value_heads=4), n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1,
    first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=2, v_head_dim=10, rope_parameters=rope(rope_type="default")),
 "deepseek_v3": tf.DeepseekV3Config(**dict(sm, num_key_value_heads=4, num_hidden_layers=3), n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12,
    n_shared_experts=1, n_group=3, topk_group=2, first_k_dense_replace=1, kv_lora_rank=10, q_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7,
    rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.8)),
 "gpt_oss": tf.GptOssConfig(**few, num_local_experts=5, num_experts_per_tok=2, sliding_window=8, layer_types=slides,
    rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, truncate=False, beta_fast=4.0, beta_slow=0.5)),
 "gpt_oss-mxfp4": tf.GptOssConfig(**dict(few, hidden_size=32, intermediate_size=32), num_local_experts=3, num_experts_per_tok=2, attention_bias=False),
 "glm4_moe": tf.Glm4MoeConfig(**dict(few, num_hidden_layers=3), attention_bias=True, use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=12,
    n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "dots1": tf.Dots1Config(**few, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1, norm_topk_prob=True, sliding_window=8,
    max_window_layers=1, rope_parameters=rope(rope_type="default")),
 "minimax_m2": tf.MiniMaxM2Config(**few, num_local_experts=6, num_experts_per_tok=2, rope_parameters=rope(rope_type="default", partial_rotary_factor=0.5)),
 "ernie4_5_moe": tf.Ernie4_5_MoeConfig(**few, moe_num_experts=6, moe_k=2, moe_intermediate_size=12, moe_num_shared_experts=2, rope_parameters=rope(rope_type="default")),
 "bloom": tf.BloomConfig(vocab_size=V, hidden_size=24, n_layer=2, n_head=3, seq_length=64, bos_token_id=1, eos_token_id=2, pad_token_id=0),
 "mpt": tf.MptConfig(vocab_size=V, d_model=24, n_layers=2, n_heads=6, max_seq_len=64, bos_token_id=1, eos_token_id=2,
    attn_config=dict(softmax_scale=0.4)),
 "mpnet": tf.MPNetConfig(**dict(base, hidden_size=16), intermediate_size=24),
 "modernbert": tf.ModernBertConfig(**dict(base, hidden_size=24, num_hidden_layers=4, num_attention_heads=3), intermediate_size=20, local_attention=11,
    global_attn_every_n_layers=2, rope_parameters={"full_attention": rope(rope_type="default"), "sliding_attention": dict(rope_type="default", rope_theta=10.0)}),
 "modernbert-biases": tf.ModernBertConfig(**dict(base, hidden_size=16, num_hidden_layers=3), intermediate_size=24, local_attention=6, norm_bias=True, norm_eps=1e-3,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"], attention_bias=True, mlp_bias=True, hidden_activation="gelu_pytorch_tanh",
    rope_parameters={"full_attention": dict(rope_type="linear", factor=2.0, rope_theta=50.0), "sliding_attention": rope(rope_type="default")}),
 "gemma3-both-ways": tf.Gemma3TextConfig(**few, use_bidirectional_attention=True, sliding_window=12, query_pre_attn_scalar=16, layer_types=slides),
 "nanochat": tf.NanoChatConfig(**few, final_logit_softcapping=3.0, rope_parameters=rope(rope_type="default")),
 "apertus": tf.ApertusConfig(**few, rope_parameters=rope(rope_type="default")),
 "phimoe": tf.PhimoeConfig(**few, num_local_experts=6, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.3, rope_parameters=rope(rope_type="longrope",
    short_factor=[1.0, 1.1, 1.3, 1.5], long_factor=[1.0, 2.0, 3.0, 4.0], short_mscale=1.2, long_mscale=1.3, original_max_position_embeddings=64)),
 "bitnet": tf.BitNetConfig(**sm, attention_bias=True, rope_parameters=rope(rope_type="default")),
 "lfm2_moe": tf.Lfm2MoeConfig(**dict(few, num_hidden_layers=4), layer_types=["conv", "full_attention", "conv", "full_attention"], conv_L_cache=4, conv_bias=True,
    num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, num_dense_layers=1, routed_scaling_factor=1.5),
 "albert": tf.AlbertConfig(**dict(base, hidden_size=16, num_hidden_layers=3), intermediate_size=24, embedding_size=8),
 "albert-groups": tf.AlbertConfig(**dict(base, hidden_size=16, num_hidden_layers=5), intermediate_size=24, embedding_size=24, num_hidden_groups=2, inner_group_num=2,
    hidden_act="gelu"),
 "electra-small": tf.ElectraConfig(**dict(base, hidden_size=16), embedding_size=8, intermediate_size=24),
 "gemma4": tf.Gemma4TextConfig(**g4, global_head_dim=12, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=6,
    vocab_size_per_layer_input=V + 3, num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=3.0, layer_types=g4_types, rope_parameters=g4_rope),
 "gemma4-plain": tf.Gemma4TextConfig(**dict(g4, num_hidden_layers=3), global_head_dim=16, hidden_size_per_layer_input=0, attention_bias=True,
    tie_word_embeddings=False, layer_types=["sliding_attention", "full_attention", "full_attention"]),
 "gemma4-whole": tf.Gemma4Config(text_config=dict(dict(g4, num_hidden_layers=4), model_type="gemma4_text", global_head_dim=6, hidden_size_per_layer_input=4,
    vocab_size_per_layer_input=V, num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2, use_bidirectional_attention="vision"),
    vision_config=dict(eye, model_type="gemma4_vision", head_dim=4, num_key_value_heads=2, position_embedding_size=16), audio_config=None),
 "gemma4-experts": tf.Gemma4TextConfig(**dict(g4, num_hidden_layers=4), global_head_dim=12, num_global_key_value_heads=1, attention_k_eq_v=True,
    hidden_size_per_layer_input=0, layer_types=g4_types[:4], rope_parameters=g4_rope, enable_moe_block=True, num_experts=5, top_k_experts=3, moe_intermediate_size=12),
 "granitemoe": tf.GraniteMoeConfig(**sm, num_local_experts=5, num_experts_per_tok=2, embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22,
    logits_scaling=8.0, attention_bias=True, rope_parameters=rope(rope_type="default")),
 "granitemoeshared": tf.GraniteMoeSharedConfig(**few, num_local_experts=5, num_experts_per_tok=3, shared_intermediate_size=20, embedding_multiplier=6.0,
    attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=4.0, tie_word_embeddings=True, rope_parameters=rope(rope_type="default")),
}
A |= later
def mxfp4(m):
    "Replaces the experts' matrices by the values of random blocks; returns the tensors of the file."
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    g, packed = torch.Generator().manual_seed(3), {}
    for n, p in m.named_parameters():
        if not n.endswith(("experts.gate_up_proj", "experts.down_proj")): continue
        e, i, o = p.shape
        packed[n + "_blocks"] = torch.randint(0, 256, (e, o, i // 32, 16), generator=g).to(torch.uint8)
        packed[n + "_scales"] = torch.randint(121, 126, (e, o, i // 32), generator=g).to(torch.uint8)
        p.data = convert_moe_packed_tensors(packed[n + "_blocks"], packed[n + "_scales"]).float()
    return packed
def make(name, cfg):
    if name in ("qwen3-base", "distilbert", "electra", "electra-small", "gemma3-both-ways", "modernbert", "modernbert-biases"): return tf.AutoModel.from_config(cfg, attn_implementation="eager")
    if name in ("roberta", "nomic_bert", "mpnet", "albert", "albert-groups"): return tf.AutoModel.from_config(cfg, attn_implementation="eager", add_pooling_layer=False)
    auto = tf.AutoModelForImageTextToText if hasattr(cfg, "vision_config") else tf.AutoModelForCausalLM
    return auto.from_config(cfg, attn_implementation="eager")
gen = torch.Generator().manual_seed(1)
ids = torch.randint(3, V, (1, T), generator=gen)
for name, cfg in A.items():
    if only and name not in only: continue
    d = os.path.join(out, name); os.makedirs(d, exist_ok=True)
    torch.manual_seed(0)
    encoder = name in ("roberta", "qwen3-base", "distilbert", "electra", "electra-small", "nomic_bert", "mpnet", "gemma3-both-ways", "albert", "albert-groups", "modernbert", "modernbert-biases")
    m = make(name, cfg).float().eval()
    g = torch.Generator().manual_seed(2)
    for n, p in m.named_parameters(): p.data += (1.0 if n.endswith("sinks") else 0.12) * torch.randn(p.shape, generator=g)
    for n, p in m.named_parameters():
        if name.startswith("gemma4") and "q_norm" in n: p.data *= 0.3  # its scores have no scale of their own
    for n, p in m.named_buffers():
        if n.endswith("layer_scalar"): p.data = (1 + 0.3 * torch.randn(p.shape, generator=g)).bfloat16().float()
        if "e_score_correction_bias" in n or "expert_bias" in n: p.data += (0.3 * torch.randn(p.shape, generator=g)).bfloat16().float()
    if getattr(cfg, "tie_word_embeddings", False): m.tie_weights()
    for p in m.parameters(): p.data = p.data.bfloat16().float()
    packed = mxfp4(m) if name.endswith("-mxfp4") else {}
    with torch.no_grad():
        r = m(input_ids=ids)
    ref = {"input_ids": ids[0].int()}
    if encoder: ref["hidden"] = r.last_hidden_state[0].contiguous().clone()
    else: ref["logits"] = r.logits[0].float().contiguous().clone()
    if name in later and not encoder:
        text = ids[:, :8]
        for _ in range(12):
            with torch.no_grad(): text = torch.cat([text, m(input_ids=text).logits[:, -1:].argmax(-1)], 1)
        ref["greedy"] = text[0, 8:].int()
    save_file(ref, os.path.join(d, "ref.safetensors"))
    m.save_pretrained(d)
    w = {k: v.bfloat16() for k, v in load_file(os.path.join(d, "model.safetensors")).items()}
    if packed:
        w = {k: v for k, v in w.items() if k + "_blocks" not in packed} | packed
        c = json.load(open(os.path.join(d, "config.json")))
        c["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"])
        json.dump(c, open(os.path.join(d, "config.json"), "w"), indent=2)
    save_file(w, os.path.join(d, "model.safetensors"), metadata={"format": "pt"})
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(d, extra)): os.remove(os.path.join(d, extra))
    print(name, sum(v.numel() for v in w.values()), float(list(ref.values())[1].abs().max()))

# ---- encoder-decoders ----
t5 = dict(vocab_size=V, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=3, relative_attention_num_buckets=10,
          relative_attention_max_distance=24, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0)
bart = dict(vocab_size=V, d_model=24, encoder_layers=3, decoder_layers=2, encoder_ffn_dim=20, decoder_ffn_dim=28, encoder_attention_heads=3,
            decoder_attention_heads=4, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2, init_std=0.2)
S = {
 "t5": tf.T5Config(**t5),
 "t5-gated": tf.T5Config(**dict(t5, d_kv=8, num_layers=3, num_decoder_layers=2, num_heads=2, relative_attention_num_buckets=32, relative_attention_max_distance=128,
    decoder_start_token_id=5), feed_forward_proj="gated-gelu", tie_word_embeddings=False),
 "bart": tf.BartConfig(**bart, scale_embedding=True, decoder_start_token_id=2),
 "mbart": tf.MBartConfig(**dict(bart, encoder_layers=1, decoder_layers=2, activation_function="relu"), decoder_start_token_id=7),
 "mt5": tf.MT5Config(**dict(t5, num_layers=1, num_decoder_layers=2, relative_attention_num_buckets=8)),
}
def save_bfloat16(m, d, ref):
    save_file(ref, os.path.join(d, "ref.safetensors"))
    m.save_pretrained(d)
    path = os.path.join(d, "model.safetensors")
    save_file({k: v.bfloat16() for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
words = ["<pad>", "<unk>", "</s>", "\u2581"] + list("abcdefghijklmnopqrstuvwxyz") + ["\u2581" + w for w in "a b c d e f g h i to in the of cat dog red sun".split()] + ["er"]
t5_tokenizer = dict(version="1.0", truncation=None, padding=None, normalizer=None, pre_tokenizer=dict(type="Metaspace", replacement="\u2581", prepend_scheme="always", split=True),
    added_tokens=[dict(id=i, content=words[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i in range(3)],
    post_processor=dict(type="TemplateProcessing", single=[dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="</s>", type_id=0))],
        pair=[dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=0))], special_tokens={"</s>": dict(id="</s>", ids=[2], tokens=["</s>"])}),
    decoder=dict(type="Metaspace", replacement="\u2581", prepend_scheme="always", split=True),
    model=dict(type="Unigram", unk_id=1, byte_fallback=False, vocab=[[w, 0.0 if i < 3 else -3.0 - 0.125 * (i % 7) + len(w)] for i, w in enumerate(words)]))
assert len(words) == V
for name, cfg in S.items():
    if only and name not in only: continue
    d = os.path.join(out, name); os.makedirs(d, exist_ok=True)
    torch.manual_seed(0)
    m = tf.AutoModelForSeq2SeqLM.from_config(cfg, attn_implementation="eager").float().eval()
    g = torch.Generator().manual_seed(2)
    untied = getattr(cfg, "scale_decoder_outputs", True) is False
    if untied:
        m.lm_head.weight = torch.nn.Parameter(torch.randn(m.lm_head.weight.shape, generator=g))
        m.config.tie_word_embeddings = False
    for n, p in m.named_parameters(): p.data += (0.5 if "bias" in n or "norm" in n else 0.12) * torch.randn(p.shape, generator=g)
    if hasattr(m, "final_logits_bias"): m.final_logits_bias = (0.4 * torch.randn(m.final_logits_bias.shape, generator=g)).bfloat16().float()
    for p in m.parameters(): p.data = p.data.bfloat16().float()
    start = [cfg.decoder_start_token_id] + ([4] if name == "bart" else [])
    if name == "bart": m.generation_config.forced_bos_token_id = 4
    source, text = ids[:, :T - 3].flip(1), torch.cat([torch.tensor([start]), ids[:, :T - len(start)]], 1)
    with torch.no_grad(): r = m(input_ids=source, decoder_input_ids=text)
    ref = {"source": source[0].int().contiguous(), "input_ids": text[0].int(), "logits": r.logits[0].float().contiguous().clone(),
           "states": r.encoder_last_hidden_state[0].contiguous().clone()}
    text = torch.tensor([start])
    for _ in range(12):
        with torch.no_grad(): text = torch.cat([text, m(input_ids=source, decoder_input_ids=text).logits[:, -1:].argmax(-1)], 1)
    ref["greedy"] = text[0, len(start):].int()
    save_bfloat16(m, d, ref)
    if len(start) == 1: os.remove(os.path.join(d, "generation_config.json")) # the config says it all
    if name in ("t5-gated", "bart"): # for tests/cli/test_stacks.sh
        with open(os.path.join(d, "tokenizer.json"), "w") as f: json.dump(t5_tokenizer, f, ensure_ascii=False, separators=(",", ":"))
    print(name, ref["greedy"].tolist(), float(ref["logits"].abs().max()))
    if name == "t5-gated": # the encoder alone
        e = tf.T5EncoderModel(cfg).float().eval()
        e.load_state_dict(m.state_dict(), strict=False)
        with torch.no_grad(): h = e(input_ids=source).last_hidden_state
        assert torch.equal(h, r.encoder_last_hidden_state)
        os.makedirs(d + "-encoder", exist_ok=True)
        save_bfloat16(e, d + "-encoder", {"input_ids": source[0].int().contiguous(), "hidden": h[0].contiguous().clone()})
