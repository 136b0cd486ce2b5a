/* train_kit.h - a byte-level tokenizer of 260 tokens made in memory, and a chat template. */
#ifndef FM_TESTS_KIT_TRAIN_H
#define FM_TESTS_KIT_TRAIN_H

#include "infer/chat.h"
#include "infer/tokenizer.h"
#include "tests/testkit.h"

#define KIT_EOS 257

static const char kit_template[] =
    "{% for m in messages %}<|start|>{{ m['role'] }}:{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}";

/* Byte b is token b; 256..258 are special. */
static inline fm_tokenizer *kit_tokenizer(void)
{
    static const char config[] = "{\"bos_token\":\"<|bos|>\",\"eos_token\":\"<|end|>\"}";
    static const char *const special[] = {"<|start|>", "<|end|>", "<|bos|>"};
    fm_tokenizer *t = NULL;
    uint32_t other = 256; /* GPT-2's place for bytes that are not printable */
    fm_buf b;

    fm_buf_init(&b, 0);
    fm_buf_str(&b, "{\"added_tokens\":[");
    for (uint32_t i = 0; i < 3; i++)
        fm_buf_printf(&b,
                      "%s{\"id\":%u,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                      i ? "," : "", 256 + i, special[i]);
    fm_buf_str(&b, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                   "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                   "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                   "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (uint32_t i = 0; i < 256; i++) {
        bool own = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        fm_buf_printf(&b, "%s\"\\u%04x\":%u", i ? "," : "", own ? i : other++, i);
    }
    for (uint32_t i = 0; i < 3; i++)
        fm_buf_printf(&b, ",\"%s\":%u", special[i], 256 + i);
    fm_buf_str(&b, "}}}");
    tk_ok(fm_buf_ok(&b));
    tk_ok(fm_tokenizer_open(&t, fm_buf_span(&b), fm_span_str(config), "kit"));
    fm_buf_release(&b);
    return t;
}

static inline fm_chat_template *kit_chat(void)
{
    fm_chat_template *t = NULL;
    tk_ok(fm_chat_template_open(&t, fm_span_str(kit_template), "kit"));
    return t;
}

#endif
