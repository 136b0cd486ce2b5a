/* text_cache.c - tokenizers and chat templates, shared by the models of an engine.
 *
 * Both are immutable and made from the files under tokenizer/ alone, so the ids of those files are
 * their key. Parsing a large tokenizer.json takes longer than loading a small model, and a search
 * for blame opens many mixtures of one family. So the text that was used last stays when its last
 * model closes, until another takes its place. */
#include "infer/model/model_bind.h"

#include <string.h>

#include "store/base/mem.h"

struct fmi_text {
    fm_digest id; /* of everything under tokenizer/ */
    fm_tokenizer *tokenizer;
    fm_chat_template *chat;
    fm_token_trie *trie; /* made when a grammar first needs it */
    uint32_t refs;
    fmi_text *next;
};

/* Digest of the paths and ids of all files under tokenizer/. */
static fm_status digest_text(fm_digest *out, const fm_tree *tree)
{
    fm_hasher *h = NULL;
    size_t begin, end;
    fm_tree_range(tree, "tokenizer/", &begin, &end);
    fm_status rc = fm_hasher_new(&h);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        rc = fm_hasher_update(h, e->path, strlen(e->path) + 1);
        FM_THEN(rc, fm_hasher_update(h, e->id.b, sizeof(e->id.b)));
    }
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

static fm_status read_file(fm_buf *out, const fmi_binder *b, const char *path, bool *there)
{
    const fm_entry *e = fm_tree_find(b->tree, path);
    *there = e != NULL;
    return e ? fm_entry_read(out, b->p, e) : FM_OK;
}

static fm_status open_text(fmi_text *t, const fmi_binder *b)
{
    fm_buf tok, conf, chat;
    bool has_tok = false, has_conf = false, has_chat = false;
    fm_buf_init(&tok, 0);
    fm_buf_init(&conf, 0);
    fm_buf_init(&chat, 0);
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && !has_tok && fm_tokenizer_paths[i]; i++)
        rc = read_file(&tok, b, fm_tokenizer_paths[i], &has_tok);
    FM_THEN(rc, read_file(&conf, b, "tokenizer/tokenizer_config.json", &has_conf));
    FM_THEN(rc, read_file(&chat, b, "tokenizer/chat_template.jinja", &has_chat));
    if (rc == FM_OK && has_tok)
        rc = fm_tokenizer_open(&t->tokenizer, fm_buf_span(&tok), fm_buf_span(&conf), NULL);
    fm_span source = fm_buf_span(&chat);
    if (rc == FM_OK && !has_chat && t->tokenizer)
        source = fm_tokenizer_chat_template(t->tokenizer);
    if (rc == FM_OK && source.data) /* outlives this model, so its errors name no model */
        rc = fm_chat_template_open(&t->chat, source, "chat template");
    fm_buf_release(&tok);
    fm_buf_release(&conf);
    fm_buf_release(&chat);
    return rc == FM_OK || rc == FM_ENOMEM ? rc : fm_error_prefix(rc, "%s", b->what);
}

static void free_text(fmi_text *t)
{
    fm_tokenizer_close(t->tokenizer);
    fm_chat_template_close(t->chat);
    fm_token_trie_free(t->trie);
    fm_free(t);
}

/* Takes one more reference to the text of this id; where there is none by now, fresh is added.
 * Files are parsed without the lock. */
static fmi_text *share_text(fm_engine *e, const fm_digest *id, fmi_text *fresh)
{
    (void)pthread_mutex_lock(&e->share);
    fmi_text *t = e->texts;
    while (t && !fm_digest_eq(&t->id, id))
        t = t->next;
    if (!t && fresh) {
        t = fresh;
        t->id = *id;
        t->next = e->texts;
        e->texts = t;
    }
    if (t)
        t->refs++;
    (void)pthread_mutex_unlock(&e->share);
    return t;
}

fm_status fmi_text_bind(fmi_binder *b)
{
    fm_model *m = b->m;
    fm_status rc = digest_text(&m->text_digest, b->tree);
    if (rc != FM_OK)
        return rc;
    fmi_text *t = share_text(m->engine, &m->text_digest, NULL);
    if (!t) {
        fmi_text *fresh = fm_calloc(1, sizeof(*fresh));
        if (!fresh)
            return FM_ENOMEM;
        rc = open_text(fresh, b);
        if (rc == FM_OK)
            t = share_text(m->engine, &m->text_digest, fresh);
        if (t != fresh)
            free_text(fresh);
        if (rc != FM_OK)
            return rc;
    }
    fmi_priv(m)->text = t;
    m->tokenizer = t->tokenizer;
    m->chat = t->chat;
    return FM_OK;
}

fm_status fmi_text_trie(const fm_token_trie **out, const fm_model *m)
{
    fmi_text *t = fmi_priv(m)->text;
    fm_status rc = FM_OK;
    *out = NULL;
    if (!t || !t->tokenizer)
        return fm_fail(FM_EINVAL, "request: 'grammar' needs a tokenizer, the model has none");
    if (!t->trie)
        rc = fm_token_trie_new(&t->trie, t->tokenizer);
    *out = t->trie;
    return rc;
}

/* Takes out the texts without references, except `keep`. */
static fmi_text *sweep(fm_engine *e, const fmi_text *keep)
{
    fmi_text *gone = NULL;
    for (fmi_text **at = &e->texts; *at;) {
        fmi_text *t = *at;
        if (t->refs > 0 || t == keep) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->next = gone;
        gone = t;
    }
    return gone;
}

static void free_texts(fmi_text *list)
{
    fmi_text *next;
    for (; list; list = next) {
        next = list->next;
        free_text(list);
    }
}

void fmi_text_drop(fm_engine *e, fmi_text *t)
{
    if (!t)
        return;
    (void)pthread_mutex_lock(&e->share);
    fmi_text *gone = --t->refs == 0 ? sweep(e, t) : NULL;
    (void)pthread_mutex_unlock(&e->share);
    free_texts(gone);
}

void fmi_texts_free(fm_engine *e)
{
    free_texts(sweep(e, NULL));
    fm_assert(!e->texts); /* models are closed before their engine */
}
