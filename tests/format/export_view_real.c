/* Views and exports of real models and adapters are, in one go and in ranges, what exports were
 * before there were views. */
#include "tests/format/view_kit.h"

static const vk_case cases[] = {
    {"smollm2", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "07f88dbb4df3fb1f64315dc06eccee6b588d749f90922f6b362d0ae6d10b4427"},
    {"smollm2", FM_EXPORT_HF, FM_BF16,
     "c89ffbd9f3a0f8a87fae6103644d61809d036f245603ad950d92febea8d9ee5e"},
    {"smollm2+smollm2-lora", FM_EXPORT_HF, FM_DTYPE_NONE,
     "d8f4bda2765063bcf64f61550dc80ba859e9cba1e7220d546fab28355b8f9b52"},
    {"smollm2+smollm2-lora", FM_EXPORT_SAFETENSORS, FM_BF16,
     "9aef77256daf4f00af59511eeadc73dbdf8c9c5cac0b3de44d3519b719ced9d2"},
    {"smollm2+smollm2-lora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "fb824e01e6525fd48bc2aeafff38da5e3e6592f38110304f58c43d3c173eece3"},
    {"minilm", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "099f807c6776dd42bf6692187c83b067444960d575bb05a839708952cde11ecf"},
    {"minilm", FM_EXPORT_HF, FM_F16,
     "6bab1ee3c8d4fc90da3ad6ebc4b015d5c6089f08fd4dd41d581af8f2cf66bc87"},
    {"arch/mixtral", FM_EXPORT_HF, FM_BF16,
     "7574c6801b58bad3335e92fb7970ffdac8aa15fc18647d62ac9f27377d9cac0c"},
    {"arch/gpt2", FM_EXPORT_HF, FM_DTYPE_NONE,
     "825ca3a17ecbdf6c1e210541c80b758f7816afa5dd9e193a2fe0fc7fbdeab786"},
    {"arch/bert", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "998486a148d88bd01211e15687fa08f0ad83e091a606bc4bc09363ee15da0374"},
    {"arch/llama+arch/llama/peft/dora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "7137c133de226943d2c4dce9f02d52bc5dfb4fc3d41196daca6330cfe8d23bab"},
    {"arch/llama+arch/llama/peft/ia3", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "f183c6200d21e0bbdf0e131c0866822be559377b69a6f5604682c14410022db7"},
    {"arch/llama+arch/llama/peft/lora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "f99f174f1c5077cfe07b0764391d16c69ed301f95651ebcc126270d5435ea9e5"},
    {"arch/llama+arch/llama/peft/lora-modules-to-save", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "de5e02d0dd19ad78a0492c7f3d85fc97792d9feff3030eae3ab2b28ea2e624b6"},
    {"arch/llama+arch/llama/peft/lora-qv-pattern", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "905ed96b6cb6bd562ca7382a1b0ec50e87d07f0a2ab3011a4193a4c4f0ee7152"},
    {"arch/llama+arch/llama/peft/prefix", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "e3933c4cce055c63086c4a553f0c99c56d11f6b20670bc04e172c1e3fa670c6a"},
    {"arch/llama+arch/llama/peft/prompt", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "0fde2a0263456c236e3893019cac16f5f560009b10c321bc0c6377f6c06db6ab"},
    {"arch/llama+arch/llama/peft/rslora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "47cbcc6af5de401e866ef0f2e319ea1947eebe40f601097e40d1c46fff342684"},
    {"arch/llama+arch/llama/peft/lora", FM_EXPORT_HF, FM_DTYPE_NONE,
     "33754a38c5c7f8b6b52dde99657b071aec173078d44aa4a1c6ff60f82272d5b8"},
    {"arch/llama+arch/llama/peft/lora-modules-to-save", FM_EXPORT_HF, FM_DTYPE_NONE,
     "ea796308246ec3427cb76f156b62ffa12996985f23be590a4603fab06d0e1d65"},
    {"arch/llama+arch/llama/peft/lora-qv-pattern", FM_EXPORT_HF, FM_DTYPE_NONE,
     "cfd8195317c493eb1b4dad4a13a931edc82404d689b6468e1ea275bd962563d8"},
    {"arch/llama+arch/llama/peft/rslora", FM_EXPORT_HF, FM_DTYPE_NONE,
     "16a9c813bc479ddd769ba1ad40ba9b9b1f215f0cc5290b19de511dc39a8d15c3"},
};

/* "model" or "model+adapter", each a path below the shared data or a model that is downloaded. */
static bool open_real(vk_world *w, const char *name)
{
    const char *plus = strchr(name, '+');
    char *rel = fm_strndup(name, plus ? (size_t)(plus - name) : strlen(name));
    char *model = strcmp(rel, "smollm2") == 0  ? tk_smollm2_gguf()
                  : strcmp(rel, "minilm") == 0 ? tk_minilm()
                                               : tk_shared(rel);
    char *adapter = plus ? tk_shared(plus + 1) : NULL;
    const bool there = model && (!plus || adapter);
    fm_free(rel);
    if (there) {
        vk_open(w, model, adapter);
    } else {
        fm_free(model);
        fm_free(adapter);
    }
    return there;
}

static unsigned missing;

TEST(views_and_exports_are_what_exports_were)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        vk_world w;
        if (!open_real(&w, cases[i].model)) {
            print_message("%s is not on this machine\n", cases[i].model);
            missing++;
            continue;
        }
        char *root = tk_scratch();
        vk_check(&w, &cases[i], root, 30, 40);
        vk_close(&w);
        fm_free(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_and_exports_are_what_exports_were),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed == 0 && missing == FM_ARRAY_LEN(cases) ? tk_skip("no real models here") : failed;
}
