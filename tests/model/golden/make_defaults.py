#!/usr/bin/env python3
"""What an absent setting means: the configs that transformers' classes give when nothing is said, for tests/model/infer_config.c.

usage: make_defaults.py OUT.json        made with transformers 5.23"""
import json, sys
import transformers as tf

names = """Bart MBart T5 MT5 Llama Mistral Ministral Qwen2 Qwen3 Gemma Gemma2 Gemma3Text Phi3 Mixtral Qwen2Moe
Qwen3Moe GPT2 GPTNeoX Bert Roberta XLMRoberta Granite Olmo2 Olmo3 Olmoe Exaone4 SeedOss InternLM3
SmolLM3 StableLm Starcoder2 Qwen2VLText Qwen2_5_VLText Olmo Cohere Cohere2 Glm Glm4 Ernie4_5
Helium HunYuanDenseV1 Arcee Nemotron Phi GPTJ GPTBigCode OPT Falcon VaultGemma Jais2 HyperCLOVAX
Electra DistilBert NomicBert Glm4Moe MiniMaxM2 Ernie4_5_Moe Lfm2 GptOss Bloom Mpt MPNet NanoChat
Phimoe DeepseekV3 Mamba Mamba2 Qwen3Next Qwen3_5Text Qwen3_5MoeText Bamba GraniteMoe
GraniteMoeShared Lfm2Moe Albert GraniteMoeHybrid Llama4Text ModernBert NemotronH
FalconH1 Gemma4Text BitNet"""
skip = ("transformers_version", "_name_or_path", "architectures", "dtype", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
        "use_cache", "id2label", "label2id", "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "problem_type", "is_encoder_decoder")
out = {}
for name in names.split():
    c = getattr(tf, name + "Config")() if hasattr(tf, name + "Config") else getattr(tf, name.replace("Text", "") + "Config").sub_configs["text_config"]()
    if name == "Glm4Moe": c.num_attention_heads = 32  # its own heads are of 42 elements, half of which are no pairs
    d = {k: v for k, v in json.loads(c.to_json_string(use_diff=False)).items() if k not in skip and "dropout" not in k and "pdrop" not in k}
    out[d["model_type"]] = d
with open(sys.argv[1], "w") as f:
    f.write("{" + ",\n".join(json.dumps(k) + ":" + json.dumps(v, separators=(",", ":"), sort_keys=True) for k, v in sorted(out.items())) + "}\n")
