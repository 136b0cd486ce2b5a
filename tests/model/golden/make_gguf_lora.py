#!/usr/bin/env python3
"""LoRA adapters of PEFT on the models of make_gguf.py, and what llama.cpp's own converter makes of them.

usage: make_gguf_lora.py OUT_DIR LLAMA_CPP     made with torch 2.15, transformers 5.23, peft 0.21.2, the llama.cpp of llama-cpp-python 0.3.36
OUT/<name>/ (adapter_config.json, adapter_model.safetensors) and OUT/<name>.gguf.
"""
import os, pathlib, subprocess, sys, tempfile
out, llama = pathlib.Path(sys.argv[1]), sys.argv[2]
import peft, torch
import transformers as tf

V = 48
base = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
dec = dict(base, intermediate_size=24, num_key_value_heads=1)
A = {
 "llama": (tf.LlamaConfig(**dec, attention_bias=True, rope_parameters=dict(rope_theta=100.0, rope_type="linear", factor=2.0)),
    dict(target_modules="all-linear", rank_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 1})),
 "gemma2": (tf.Gemma2Config(**dec, head_dim=8, sliding_window=6, query_pre_attn_scalar=8, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    dict(target_modules=["q_proj", "k_proj", "down_proj"])),
 "phi3": (tf.Phi3Config(**dec, sliding_window=6), dict(target_modules=["qkv_proj", "gate_up_proj"], layers_to_transform=[1])),
 "starcoder2": (tf.Starcoder2Config(**dec, sliding_window=None), dict(target_modules=["v_proj", "c_fc", "c_proj"])),
}
for name, (cfg, kw) in A.items():
    torch.manual_seed(0)
    m = tf.AutoModelForCausalLM.from_config(cfg).float()
    m = peft.get_peft_model(m, peft.LoraConfig(r=2, lora_alpha=6, task_type="CAUSAL_LM", init_lora_weights=False, **kw))
    m.save_pretrained(out / name)
    (out / name / "README.md").unlink()
    with tempfile.TemporaryDirectory() as d:
        cfg.architectures = [type(m.get_base_model()).__name__]
        cfg.save_pretrained(d)
        env = dict(os.environ, PYTHONPATH=os.path.join(llama, "gguf-py"))
        subprocess.run([sys.executable, os.path.join(llama, "convert_lora_to_gguf.py"), "--base", d, "--outfile", out / (name + ".gguf"), out / name],
                       check=True, env=env, stderr=subprocess.DEVNULL)
