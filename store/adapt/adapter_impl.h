/* adapter_impl.h - PEFT adapters inside a tree: names, numbers, fit; inside store only. */
#ifndef FM_STORE_ADAPTER_IMPL_H
#define FM_STORE_ADAPTER_IMPL_H

#include "store/source.h"

#define FM_MAX_ADAPTERS 1000u
#define FM_MAX_LORA_RANK 65536u

typedef enum adp_role {
    ADP_LORA_A,
    ADP_LORA_B,
    ADP_MAGNITUDE, /* DoRA */
    ADP_IA3,
    ADP_PROMPT, /* prompt and prefix, which have no module */
    ADP_OTHER,  /* embedding factors and everything else of PEFT */
    ADP_SAVED,  /* a whole parameter that replaces the base's */
} adp_role;

typedef struct adp_key {
    adp_role role;
    char module[FM_MAX_NAME_BYTES + 1]; /* SAVED: the parameter's full name */
} adp_key;

void adp_parse_key(adp_key *out, const char *name);

/* One adapter of a tree: "adapters/<number>-<kind>/". */
typedef struct adp_place {
    uint32_t number;
    char kind[48];
    char dir[80]; /* "adapters/0-lora" */
} adp_place;

/* Lists the tree's adapters, ascending by number. *out is freed by fm_free. */
fm_status adp_list(adp_place **out, size_t *count, const fm_tree *tree);
/* Reads the adapter's adapter_config.json; p may be NULL where that is an inline file. */
fm_status adp_config(fm_json **out, const fm_tree *tree, const fm_provider *p,
                     const adp_place *place);
/* Finds the base tensor of a name; a tied lm_head gives the embedding. *out NULL: absent. */
fm_status adp_base_tensor(const fm_entry **out, const fm_tree *tree, const char *name);
/* Requires both factors of e, a tensor of the adapter: a merge would skip one that is alone. */
fm_status adp_check_pair(const fm_tree *adapter, const fm_entry *e);

#endif
