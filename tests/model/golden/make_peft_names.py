#!/usr/bin/env python3
"""LoRA of PEFT on models whose class has other names than their file: arch_peft/<family>, on arch/<family>.

usage: make_peft_names.py ARCH_DIR OUT_DIR [NAME..]        made with torch 2.15, transformers 5.23, peft 0.21
Of encoder-decoders: LoRA, DoRA and IA3 on both stacks and on attention to the source.
OUT/<family>/adapter_config.json, adapter_model.safetensors, ref.safetensors: logits [T, V] or hidden [T, H] f32 of arch/<family>'s input_ids."""
import os, sys, torch, peft
from safetensors.torch import load_file, save_file
import transformers as tf

torch.set_num_threads(1)
src, out = sys.argv[1:3]
only = sys.argv[3:]
for family, auto, task in (("mistral3", tf.AutoModelForImageTextToText, "CAUSAL_LM"), ("qwen2_5_vl", tf.AutoModelForImageTextToText, "CAUSAL_LM"),
                           ("qwen3-base", tf.AutoModel, "FEATURE_EXTRACTION"), ("granitemoeshared", tf.AutoModelForCausalLM, "CAUSAL_LM"),
                           ("albert-groups", tf.AutoModel, "FEATURE_EXTRACTION"), ("llama4", tf.AutoModelForCausalLM, "CAUSAL_LM"),
                           ("llama4-sight", tf.AutoModelForImageTextToText, "CAUSAL_LM"), ("modernbert", tf.AutoModel, "FEATURE_EXTRACTION"),
                           ("nemotron_h-latent", tf.AutoModelForCausalLM, "CAUSAL_LM"),
                           ("falcon_h1", tf.AutoModelForCausalLM, "CAUSAL_LM"),
                           ("t5", tf.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM"),
                           ("t5-gated", tf.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM"), ("bart", tf.AutoModelForSeq2SeqLM, "SEQ_2_SEQ_LM"),
                           ("gemma4", tf.AutoModelForCausalLM, "CAUSAL_LM"),
                           ("gemma4-whole", tf.AutoModelForImageTextToText, "CAUSAL_LM")):
    if only and family not in only: continue
    model = auto.from_pretrained(os.path.join(src, family), attn_implementation="eager", dtype=torch.float32).eval()
    text = "language_model.*" if auto is tf.AutoModelForImageTextToText else "layers.*"
    target = f".*{text}(q_proj|down_proj|output_linear)" if "albert" not in family else ".*(word_embeddings|hidden_mapping_in|query|ffn_output)"
    if family == "modernbert": target = ".*layers.*(Wqkv|Wi|mlp.Wo)"
    if "_h" in family: target = ".*layers.*(in_proj|q_proj|k_proj|up_proj|down_proj|gate_proj|latent_proj)"
    if "t5" in family or family == "bart": target = ".*[.](q|k|v|o|wi|wo|q_proj|k_proj|v_proj|out_proj|fc1|fc2)"
    if family == "gemma4": target = ".*(q_proj|k_proj|down_proj|per_layer_input_gate|per_layer_projection|per_layer_model_projection)"
    config = peft.LoraConfig(task_type=task, r=1, lora_alpha=2, target_modules=target, use_dora=family == "bart")
    if family == "t5-gated": config = peft.IA3Config(task_type=task, target_modules=["k", "v", "wo"], feedforward_modules=["wo"])
    model = peft.get_peft_model(model, config).eval()
    g = torch.Generator().manual_seed(4)
    for n, p in model.named_parameters():
        if "lora_A" in n or "lora_B" in n or "lora_embedding" in n: p.data = 0.3 * torch.randn(p.shape, generator=g)
        if "magnitude" in n or "ia3_" in n: p.data = p.data * (1 + 0.3 * torch.randn(p.shape, generator=g))
    known = load_file(os.path.join(src, family, "ref.safetensors"))
    ids = known["input_ids"].long()[None]
    ask = dict(input_ids=known["source"].long()[None], decoder_input_ids=ids) if "source" in known else dict(input_ids=ids)
    with torch.no_grad(): r = model(**ask)
    d = os.path.join(out, family)
    model.peft_config["default"].base_model_name_or_path = None
    model.save_pretrained(d)
    os.remove(os.path.join(d, "README.md"))
    save_file({"logits": r.logits[0].contiguous()} if "logits" in r else {"hidden": r.last_hidden_state[0].contiguous()}, os.path.join(d, "ref.safetensors"))
