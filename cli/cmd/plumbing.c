/* plumbing.c - tokenize, score, embed and classify: one JSON object per line in, one per line out,
 * in order, so that a script can compare the engine with another. */
#include <string.h>

#include "cli/commands.h"
#include "store/base/mem.h"

/* Answers one request object; the caller owns *out. */
typedef fm_status (*line_fn)(void *ctx, const fm_json *in, fm_json **out);

static fm_status each_line(line_fn fn, void *ctx)
{
    fm_buf line, text;
    bool end = false;
    fm_status rc = FM_OK;
    char what[64];
    fm_buf_init(&line, 0);
    fm_buf_init(&text, 0);
    for (unsigned long number = 1; rc == FM_OK; number++) {
        fm_json *in = NULL, *out = NULL;
        rc = cli_read_stdin_line(&line, &end);
        if (rc < 0 || end)
            break;
        snprintf(what, sizeof what, "standard input, line %lu", number);
        rc = fm_json_parse(&in, fm_buf_span(&line), what);
        if (rc == FM_OK) {
            rc = fn(ctx, in, &out);
            if (rc < 0)
                rc = fm_error_prefix(rc, "%s", what);
        }
        fm_buf_clear(&text);
        FM_THEN(rc, fm_json_write(&text, out, FM_JSON_COMPACT));
        if (rc == FM_OK && (puts(fm_buf_cstr(&text)) < 0 || fflush(stdout) != 0))
            rc = fm_fail(FM_EIO, "standard output: could not write");
        fm_json_free(in);
        fm_json_free(out);
    }
    fm_buf_release(&line);
    fm_buf_release(&text);
    return rc;
}

typedef struct plumb {
    fm_model *m; /* NULL for tokenize */
    const fm_tokenizer *tok;
    uint64_t vocab;
    bool decode;
    uint64_t top;
} plumb;

static fm_status ids_of(const fm_json *in, const plumb *p, fm_ids *ids)
{
    const fm_json *list = fm_json_get(in, "ids");
    fm_span text = fm_json_str(fm_json_get(in, "text"));
    if (text.data && p->tok)
        return fm_tokenizer_encode(p->tok, text, true, ids); /* as fm_prompt_text does */
    if (text.data)
        return fm_fail(FM_EUNSUPPORTED, "this version has no tokenizer; give {\"ids\": [...]}");
    if (!fm_json_is(list, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "want {\"text\": ...} or {\"ids\": [...]}");

    for (size_t i = 0; i < fm_json_count(list); i++) {
        int64_t id = fm_json_int(fm_json_at(list, i), -1);
        if (id < 0 || (uint64_t)id >= p->vocab)
            return fm_fail(FM_EINVAL, "ids[%zu] is no token of this model (0 to %llu)", i,
                           (unsigned long long)p->vocab - 1);
        FM_TRY(fm_ids_push(ids, (int32_t)id));
    }
    return FM_OK;
}

static fm_json *ids_json(const fm_ids *ids)
{
    fm_status rc = FM_OK;
    fm_json *array = fm_json_new_array();
    for (size_t i = 0; i < ids->count; i++)
        fm_json_push_to(&rc, array, fm_json_new_int(ids->id[i]));
    return array;
}

static fm_status tokenize_line(void *ctx, const fm_json *in, fm_json **out)
{
    const plumb *p = ctx;
    fm_ids ids = {0};
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = ids_of(in, p, &ids);
    *out = fm_json_new_object();
    if (rc == FM_OK && p->decode) {
        rc = fm_tokenizer_decode(p->tok, ids.id, ids.count, false, &text);
        fm_json_put(&rc, *out, "text", fm_json_new_strn(fm_buf_cstr(&text), text.len));
    } else {
        fm_json_put(&rc, *out, "ids", ids_json(&ids));
    }
    fm_buf_release(&text);
    fm_ids_release(&ids);
    return rc;
}

static fm_json *top_json(const fm_logprob *top, uint64_t k, size_t n)
{
    fm_status rc = FM_OK;
    fm_json *all = fm_json_new_array();
    for (size_t i = 0; i < n; i++) {
        fm_json *row = fm_json_new_array();
        for (uint64_t j = 0; j < k; j++) {
            fm_json *pair = fm_json_new_array();
            fm_json_push_to(&rc, pair, fm_json_new_int(top[i * k + j].token));
            fm_json_push_to(&rc, pair, fm_json_new_real((double)top[i * k + j].logprob));
            fm_json_push_to(&rc, row, pair);
        }
        fm_json_push_to(&rc, all, row);
    }
    return all;
}

/* The source of an encoder-decoder, before the text that is scored: "prompt", or "prompt_ids". */
static fm_status source_of(const fm_json *in, const plumb *p, fm_ids *ids)
{
    fm_json *as = fm_json_new_object();
    const fm_json *text = fm_json_get(in, "prompt"), *list = fm_json_get(in, "prompt_ids");
    fm_status rc = as ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && !text && !list)
        rc = fm_fail(FM_EINVAL,
                     "%s scores an answer to a prompt: want {\"prompt\": ...} or "
                     "{\"prompt_ids\": [...]} beside the text",
                     fm_model_arch(p->m)->family);
    if (rc == FM_OK && text)
        rc = fm_json_set(as, "text", fm_json_ref(text));
    else if (rc == FM_OK)
        rc = fm_json_set(as, "ids", fm_json_ref(list));
    FM_THEN(rc, ids_of(as, p, ids));
    fm_json_free(as);
    return rc;
}

static fm_status score_answer(const plumb *p, const fm_ids *ids, size_t from, float *lp)
{
    const fm_score_request q = {
        .model = p->m, .ids = ids->id, .n = ids->count, .logprobs = lp, .from = from};
    if (p->top)
        return fm_fail(FM_EUNSUPPORTED, "--top is not supported for %s",
                       fm_model_arch(p->m)->family);
    return fm_score_many(fm_model_engine(p->m), &q, 1);
}

static fm_status score_line(void *ctx, const fm_json *in, fm_json **out)
{
    const plumb *p = ctx;
    fm_ids ids = {0};
    float *lp = NULL;
    fm_logprob *top = NULL;
    bool stacks = fm_model_arch(p->m)->sw.cross;
    fm_status rc = stacks ? source_of(in, p, &ids) : FM_OK;
    size_t from = ids.count;
    FM_THEN(rc, ids_of(in, p, &ids));
    *out = fm_json_new_object();
    if (rc == FM_OK && ids.count == 0)
        rc = fm_fail(FM_EINVAL, "nothing to score: the text is empty");
    if (rc == FM_OK) {
        lp = fm_calloc(ids.count, sizeof *lp);
        top = fm_calloc(ids.count * p->top, sizeof *top);
        rc = !(lp && top) ? FM_ENOMEM
             : stacks
                 ? score_answer(p, &ids, from, lp)
                 : fm_score(p->m, ids.id, ids.count, lp, p->top ? top : NULL, (uint32_t)p->top);
    }
    fm_json *logprobs = fm_json_new_array();
    for (size_t i = 0; rc == FM_OK && i < ids.count; i++)
        fm_json_push_to(&rc, logprobs,
                        i >= FM_MAX(from, stacks ? 0 : 1) ? fm_json_new_real((double)lp[i])
                                                          : fm_json_new_null());
    fm_json_put(&rc, *out, "ids", ids_json(&ids));
    fm_json_put(&rc, *out, "logprobs", logprobs);
    if (rc == FM_OK && p->top)
        fm_json_put(&rc, *out, "top", top_json(top, p->top, ids.count));
    fm_free(lp);
    fm_free(top);
    fm_ids_release(&ids);
    return rc;
}

/* The ids of a text as encoders and classifiers read it, or the given ids. */
static fm_status whole_text(const plumb *p, const fm_json *in, fm_ids *ids)
{
    fm_span text = fm_json_str(fm_json_get(in, "text"));
    return text.data ? fm_embed_encode(p->m, text, ids) : ids_of(in, p, ids);
}

static fm_status embed_line(void *ctx, const fm_json *in, fm_json **out)
{
    const plumb *p = ctx;
    fm_ids ids = {0};
    uint32_t h = fm_model_arch(p->m)->hidden;
    float *x = fm_calloc(h, sizeof *x);
    fm_json *list = fm_json_new_array();
    fm_status rc = x ? FM_OK : FM_ENOMEM;
    *out = fm_json_new_object();
    FM_THEN(rc, whole_text(p, in, &ids));
    fm_embed_request q = {.model = p->m, .ids = ids.id, .n = ids.count, .out = x};
    FM_THEN(rc, fm_embed_many(fm_model_engine(p->m), &q, 1));
    for (uint32_t i = 0; rc == FM_OK && i < h; i++)
        fm_json_push_to(&rc, list, fm_json_new_real((double)x[i]));
    fm_json_put(&rc, *out, "embedding", list);
    fm_free(x);
    fm_ids_release(&ids);
    return rc;
}

static fm_status classify_line(void *ctx, const fm_json *in, fm_json **out)
{
    const plumb *p = ctx;
    fm_ids ids = {0};
    uint32_t classes = fm_model_classes(p->m), best = 0;
    float *lp = fm_calloc(classes + 1, sizeof *lp);
    fm_json *list = fm_json_new_array();
    fm_status rc = lp ? FM_OK : FM_ENOMEM;
    *out = fm_json_new_object();
    FM_THEN(rc, whole_text(p, in, &ids));
    fm_classify_request q = {.model = p->m, .ids = ids.id, .n = ids.count, .logprobs = lp};
    FM_THEN(rc, fm_classify_many(fm_model_engine(p->m), &q, 1));
    if (rc == FM_OK && fm_model_scores(p->m)) {
        fm_json_put(&rc, *out, "score", fm_json_new_real((double)lp[0]));
        classes = 0;
    }
    for (uint32_t i = 0; rc == FM_OK && i < classes; i++) {
        fm_json *one = fm_json_new_object();
        best = lp[i] > lp[best] ? i : best;
        fm_json_put(&rc, one, "label", fm_json_new_str(fm_model_label(p->m, i)));
        fm_json_put(&rc, one, "logprob", fm_json_new_real((double)lp[i]));
        fm_json_push_to(&rc, list, one);
    }
    if (rc == FM_OK && classes)
        fm_json_put(&rc, *out, "label", fm_json_new_str(fm_model_label(p->m, best)));
    if (rc == FM_OK && classes)
        fm_json_put(&rc, *out, "scores", list);
    else
        fm_json_free(list);
    fm_free(lp);
    fm_ids_release(&ids);
    return rc;
}

static fm_status tokenize(cli *c, const char *rev, bool decode)
{
    fm_oid oid;
    fm_tree *tree = NULL;
    fm_tokenizer *tok = NULL;
    fm_status rc = fm_ops_resolve(c, rev, &oid, &tree);
    FM_THEN(rc, fm_ops_open_tokenizer(c, tree, rev, &tok));
    if (rc == FM_OK) {
        plumb p = {.tok = tok, .vocab = fm_tokenizer_vocab_size(tok), .decode = decode};
        rc = each_line(tokenize_line, &p);
    }
    fm_tokenizer_close(tok);
    fm_tree_free(tree);
    return rc;
}

static fm_status score(cli *c, const char *rev, uint64_t top)
{
    fm_oid oid;
    plumb p = {.top = top};
    c->keep_packed = true;
    fm_status rc = fm_ops_load_rev(c, rev, &oid, &p.m);
    if (rc == FM_OK) {
        p.tok = fm_model_tokenizer(p.m);
        p.vocab = fm_model_arch(p.m)->vocab;
        rc = each_line(score_line, &p);
    }
    fm_model_close(p.m);
    return rc;
}

/* Runs embed and classify. */
static fm_status of_texts(cli *c, const char *rev, line_fn fn)
{
    fm_oid oid;
    plumb p = {0};
    fm_status rc = fm_ops_load_rev(c, rev, &oid, &p.m);
    if (rc == FM_OK) {
        p.tok = fm_model_tokenizer(p.m);
        p.vocab = fm_model_arch(p.m)->vocab;
        rc = each_line(fn, &p);
    }
    fm_model_close(p.m);
    return rc;
}

int cmd_tokenize(cli *c, int argc, char **argv)
{
    bool decode = false;
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        {0, "decode", OPT_FLAG, NULL,
         "{\"ids\": [N, ...]} to {\"text\": T}; without it, the other way", &decode},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    return code != CLI_GO_ON ? code : cli_exit(tokenize(c, rev, decode));
}

#define TOP_MAX 1000
int cmd_score(cli *c, int argc, char **argv)
{
    uint64_t top = 0;
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        {0, "top", OPT_UINT, "K",
         "of each line {\"text\": T} or {\"ids\": [N, ...]}, add the K best tokens at each "
         "position; of an encoder-decoder: {\"prompt\": P, \"text\": T}, without K",
         &top},
        CLI_MODE_OPTION(c),
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    if (code == CLI_GO_ON && top > TOP_MAX)
        return cli_usage_error(c, "--top wants at most %d", TOP_MAX);
    return code != CLI_GO_ON ? code : cli_exit(score(c, rev, top));
}

int cmd_embed(cli *c, int argc, char **argv)
{
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    cli_running.summary =
        "JSON lines: {\"text\": T} or {\"ids\": [N, ...]} to {\"embedding\": [X, ...]}\n"
        "Pooled, normalised and cut as the imported folder says (modules.json,\n"
        "sentence_bert_config.json); where it says nothing, an encoder gives the\n"
        "normalised mean over its tokens, a decoder the last token's final state.";
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    return code != CLI_GO_ON ? code : cli_exit(of_texts(c, rev, embed_line));
}

int cmd_classify(cli *c, int argc, char **argv)
{
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        CLI_MODE_OPTION(c),
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    cli_running.summary =
        "JSON lines: {\"text\": T} or {\"ids\": [N, ...]} to {\"label\": L, \"scores\":\n"
        "[{\"label\": L, \"logprob\": X}, ...]} of a version with a classification head\n"
        "(objective=classify, or imported from a ...ForSequenceClassification);\n"
        "to {\"score\": X} where the head has one output (a reranker, a regression).";
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    return code != CLI_GO_ON ? code : cli_exit(of_texts(c, rev, classify_line));
}
