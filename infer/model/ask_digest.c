/* ask_digest.c - digests of what one kind of question depends on.
 *
 * By the digest of a whole model, a child whose only change is a head that a question never reads
 * would have to be asked again. Text depends on all that is bound before the classification head
 * (bind.c takes the digest there). Embeddings and classes depend on sizes, every parameter but the
 * head of tokens, every file of every adapter, and what follows the final norm. A needless input
 * costs a run that was not needed; a missing one would serve a wrong answer, so doubtful ones
 * count. */
#include <stdio.h>
#include <string.h>

#include "infer/model/model_bind.h"

static fm_status add_params(fmi_binder *b, fm_hasher *h)
{
    fm_param p;

    for (uint32_t i = 0; fm_arch_param(&b->m->arch, i, &p); i++) {
        const fm_entry *e = NULL;
        if (p.place == FM_P_HEAD || p.place == FM_P_HEAD_B)
            continue;
        FM_TRY(fmi_find_entry(b, &e, p.name));
        FM_TRY(fm_hasher_update(h, e->id.b, sizeof(e->id.b)));
    }
    return FM_OK;
}

static fm_status add_entry(fm_hasher *h, const fm_entry *e)
{
    FM_TRY(fm_hasher_update(h, e->path, strlen(e->path) + 1));
    return fm_hasher_update(h, e->id.b, sizeof(e->id.b));
}

/* Adds all files under adapters/: terms, replaced tensors, virtual tokens, and their settings. */
static fm_status add_adapters(const fmi_binder *b, fm_hasher *h)
{
    size_t begin, end;

    fm_tree_range(b->tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++)
        FM_TRY(add_entry(h, fm_tree_at(b->tree, i)));
    return FM_OK;
}

static fm_status add_states(fmi_binder *b, fm_hasher *h, const char *kind)
{
    FM_TRY(fm_hasher_update(h, kind, strlen(kind) + 1));
    FM_TRY(fmi_digest_arch(h, &b->m->arch));
    FM_TRY(add_params(b, h));
    return add_adapters(b, h);
}

static fm_status add_pooling(const fmi_binder *b, fm_hasher *h)
{
    const fmi_pooling *p = &fmi_priv(b->m)->pooling;
    char text[300];
    int n = snprintf(text, sizeof(text), "pool %d %d %u %s", (int)p->mode, p->normalise,
                     p->tokens_max, p->refused);
    fm_assert(n > 0 && (size_t)n < sizeof(text));
    FM_TRY(fm_hasher_update(h, text, (size_t)n + 1));
    for (uint32_t i = 0; i < p->denses; i++) {
        const fmi_dense *d = &p->dense[i];
        n = snprintf(text, sizeof(text), "dense %u %u %d %d", d->in, d->out, d->tanh, d->biased);
        FM_TRY(fm_hasher_update(h, text, (size_t)n + 1));
        if (d->w)
            FM_TRY(fm_hasher_update(h, d->w, (size_t)d->in * d->out * sizeof(float)));
        if (d->b)
            FM_TRY(fm_hasher_update(h, d->b, d->out * sizeof(float)));
    }
    return FM_OK;
}

/* Adds the head's tensors in the tree (an adapter's are in its folder), the classes and their
 * names. */
static fm_status add_classes(const fmi_binder *b, fm_hasher *h)
{
    const fmi_class_head *head = &fmi_priv(b->m)->classifier;
    size_t begin, end;
    fm_status rc = fm_hasher_update(h, head->refused, strlen(head->refused) + 1);
    fm_tree_range(b->tree, "tensors/", &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(b->tree, i);
        if (e->kind == FM_ENTRY_TENSOR && fmi_class_tensor(&b->m->arch, e->name))
            rc = add_entry(h, e);
    }
    for (uint32_t i = 0; rc == FM_OK && i < head->classes; i++)
        rc = fm_hasher_update(h, head->label[i], strlen(head->label[i]) + 1);
    return rc;
}

fm_status fmi_ask_digests(fmi_binder *b)
{
    fm_digest *asked = fmi_priv(b->m)->asked;
    fm_hasher *h = NULL;
    fm_status rc = fm_hasher_new(&h);
    FM_THEN(rc, add_states(b, h, "embed"));
    FM_THEN(rc, add_pooling(b, h));
    FM_THEN(rc, fm_hasher_final(h, &asked[FM_ASK_EMBED]));
    FM_THEN(rc, add_states(b, h, "class"));
    FM_THEN(rc, add_pooling(b, h)); /* its limit of tokens cuts texts for classes too */
    FM_THEN(rc, add_classes(b, h));
    FM_THEN(rc, fm_hasher_final(h, &asked[FM_ASK_CLASS]));
    fm_hasher_free(h);
    return rc;
}

fm_digest fm_model_digest_for(const fm_model *m, fm_ask_kind kind)
{
    fm_assert(kind < FM_ASK_KINDS);
    return fmi_priv(m)->asked[kind];
}
