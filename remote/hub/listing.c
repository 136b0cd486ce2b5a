/* listing.c - reads the API's answer, chooses files, explains refusals.
 *
 * The choice is the one that import makes in a folder (store/import/source_hf.c), made before the
 * download: one form of the weights, and every file beside them that is small. */
#include "remote/hub/listing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/hub.h"
#include "remote/hub/address.h"
#include "store/base/mem.h"
#include "store/base/text/json.h"

#define MAX_EXTRA_BYTES (64u << 20) /* largest other file: cards, licences */
#define MAX_SHOWN 8u

/* ==== the answer ==== */

static bool is_hex(const char *text, size_t len)
{
    return strlen(text) == len && strspn(text, "0123456789abcdef") == len;
}

static fm_status bad(const char *what, const char *file, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: the Hub's answer: '%.200s' %s", what, file, why);
}

static fm_status read_digest(fmr_hub_file *f, const fm_json *v, const char *what)
{
    const fm_json *lfs = fm_json_get(v, "lfs");
    f->lfs = fm_json_is(lfs, FM_JSON_OBJECT);
    const char *hex = f->lfs ? fm_json_cstr(fm_json_get(lfs, "sha256"), "")
                             : fm_json_cstr(fm_json_get(v, "blobId"), "");
    if (!is_hex(hex, f->lfs ? FM_HEX_CHARS : 40))
        return bad(what, f->name, "has no digest, so its bytes could not be checked");
    if (f->lfs && fm_json_int(fm_json_get(lfs, "size"), -1) != (int64_t)f->bytes)
        return bad(what, f->name, "has two sizes");
    if (f->lfs && !fm_digest_parse(&f->sha256, hex, strlen(hex)))
        return bad(what, f->name, "has no digest, so its bytes could not be checked");
    memcpy(f->etag, hex, strlen(hex) + 1);
    return FM_OK;
}

static fm_status read_file(fmr_listing *l, const fm_json *v, const char *what)
{
    const fm_span name = fm_json_str(fm_json_get(v, "rfilename"));
    if (!name.data || memchr(name.data, '\0', name.len))
        return bad(what, "siblings", "has a file without a name");
    FM_TRY(fm_grow(&l->file, &l->cap, l->count + 1, sizeof *l->file));
    fmr_hub_file *f = &l->file[l->count];
    memset(f, 0, sizeof *f);
    f->name = fm_strndup((const char *)name.data, name.len);
    if (!f->name)
        return FM_ENOMEM;
    l->count++;
    if (!fmr_hub_path_is_safe(f->name))
        return bad(what, "rfilename", "is no path inside a folder");
    const fm_json *lfs = fm_json_get(v, "lfs");
    const fm_json *size =
        fm_json_get(v, "size") ? fm_json_get(v, "size") : fm_json_get(lfs, "size");
    const int64_t bytes = fm_json_int(size, -1);
    if (bytes < 0 || (uint64_t)bytes > FMR_HUB_FILE_MAX_BYTES)
        return bad(what, f->name, "has no sensible size");
    f->bytes = (uint64_t)bytes;
    FM_TRY(read_digest(f, v, what));
    if (!f->lfs && f->bytes > FMR_HUB_PLAIN_MAX_BYTES)
        return bad(what, f->name, "is larger than git holds on the Hub, and not in LFS");
    return FM_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const fmr_hub_file *)a)->name, ((const fmr_hub_file *)b)->name);
}

/* A name may be there once, and no file may also be a folder. */
static fm_status check_names(const fmr_listing *l, const char *what)
{
    for (size_t i = 0; i + 1 < l->count; i++) {
        const char *a = l->file[i].name, *b = l->file[i + 1].name;
        const size_t n = strlen(a);
        if (strcmp(a, b) == 0)
            return bad(what, a, "is there twice");
        for (size_t k = i + 1; k < l->count && strncmp(l->file[k].name, a, n) == 0; k++)
            if (l->file[k].name[n] == '/')
                return bad(what, a, "is a file and a folder");
    }
    return FM_OK;
}

static fm_status read_all(fmr_listing *l, const fm_json *root, const char *what)
{
    const fm_json *files = fm_json_get(root, "siblings");
    const char *commit = fm_json_cstr(fm_json_get(root, "sha"), "");
    if (!is_hex(commit, 40))
        return bad(what, "sha", "is no commit");
    memcpy(l->commit, commit, 41);
    if (!fm_json_is(files, FM_JSON_ARRAY))
        return bad(what, "siblings", "is no list of files");
    if (fm_json_count(files) > FMR_HUB_MAX_FILES)
        return fm_fail(FM_ELIMIT, "%s: has %zu files, at most %u are read", what,
                       fm_json_count(files), FMR_HUB_MAX_FILES);
    for (size_t i = 0; i < fm_json_count(files); i++)
        FM_TRY(read_file(l, fm_json_at(files, i), what));
    if (l->count > 0)
        qsort(l->file, l->count, sizeof *l->file, by_name);
    return check_names(l, what);
}

fm_status fmr_listing_parse(fmr_listing *out, fm_span text, const char *what)
{
    fm_json *root = NULL;
    memset(out, 0, sizeof *out);
    fm_status rc = fm_json_parse(&root, text, what);
    FM_THEN(rc, read_all(out, root, what));
    fm_json_free(root);
    if (rc != FM_OK)
        fmr_listing_release(out);
    return rc;
}

void fmr_listing_release(fmr_listing *l)
{
    for (size_t i = 0; i < l->count; i++)
        fm_free(l->file[i].name);
    fm_free(l->file);
    memset(l, 0, sizeof *l);
}

fmr_hub_file *fmr_listing_find(const fmr_listing *l, const char *name)
{
    size_t low = 0, high = l->count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strcmp(l->file[mid].name, name);
        if (order == 0)
            return &l->file[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* ==== the choice ==== */

/* Folders as "1_Pooling/" are parts of a sentence-transformers model. */
static bool is_outside(const char *name)
{
    const size_t digits = strspn(name, "0123456789");
    return strchr(name, '/') && !(digits > 0 && name[digits] == '_' && name[digits + 1] != '/');
}

/* What is not worth a download beside a model's safetensors: the same weights in another form, an
 * optimizer's state. */
static bool is_other_weights(const char *name)
{
    static const char *const suffix[] = {".bin",    ".pt",        ".pth",  ".ckpt",
                                         ".h5",     ".msgpack",   ".onnx", ".gguf",
                                         ".tflite", ".onnx_data", ".ot",   ".npz"};
    for (size_t i = 0; i < FM_ARRAY_LEN(suffix); i++)
        if (fm_ends_with(name, suffix[i]))
            return true;
    return false;
}

static void mark_extras(fmr_listing *l)
{
    for (size_t i = 0; i < l->count; i++) {
        fmr_hub_file *f = &l->file[i];
        f->take = false;
        if (is_outside(f->name))
            f->why_not = "in a folder";
        else if (is_other_weights(f->name))
            f->why_not = "another form of the weights";
        else if (f->bytes > MAX_EXTRA_BYTES)
            f->why_not = "more than 64 MiB beside the weights";
        else
            f->take = true;
    }
}

/* The names of some files that could be imported alone. */
static void say_some(fm_buf *out, const fmr_listing *l)
{
    static const char *const suffix[] = {".gguf", ".safetensors", ".bin", ".pth", ".pt"};
    size_t shown = 0, more = 0;
    for (size_t k = 0; k < FM_ARRAY_LEN(suffix); k++)
        for (size_t i = 0; i < l->count; i++) {
            if (!fm_ends_with(l->file[i].name, suffix[k]))
                continue;
            if (shown < MAX_SHOWN)
                fm_buf_printf(out, "%s%.100s", shown ? ", " : "", l->file[i].name);
            *(shown < MAX_SHOWN ? &shown : &more) += 1;
        }
    if (more)
        fm_buf_printf(out, " and %zu more", more);
    if (!shown)
        fm_buf_str(out, "none");
}

static fm_status no_weights(const fmr_listing *l, const char *what)
{
    fm_buf names;
    fm_buf_init(&names, 0);
    say_some(&names, l);
    fm_status rc = fm_fail(FM_ENOTFOUND,
                           "%s: has no model.safetensors, no pytorch_model.bin and no adapter; one "
                           "file is imported as %s/FILE; files of weights: %s",
                           what, what, fm_buf_cstr(&names));
    fm_buf_release(&names);
    return rc;
}

static bool take(const fmr_listing *l, const char *name)
{
    fmr_hub_file *f = fmr_listing_find(l, name);
    if (f)
        f->take = true;
    return f != NULL;
}

fm_status fmr_listing_choose(fmr_listing *l, const char *what)
{
    static const char *const forms[][2] = {
        {"model.safetensors", "model.safetensors.index.json"},
        {"pytorch_model.bin", "pytorch_model.bin.index.json"},
    };
    mark_extras(l);
    l->index = NULL;
    if (fmr_listing_find(l, "adapter_config.json") && !fmr_listing_find(l, forms[0][0]) &&
        !fmr_listing_find(l, forms[0][1]))
        return take(l, "adapter_model.safetensors") || take(l, "adapter_model.bin")
                   ? FM_OK
                   : fm_fail(FM_ENOTFOUND,
                             "%s: has an adapter_config.json, but no adapter_model.safetensors "
                             "and no adapter_model.bin",
                             what);
    for (size_t i = 0; i < FM_ARRAY_LEN(forms); i++) {
        if (take(l, forms[i][0]))
            return FM_OK;
        if (take(l, forms[i][1])) {
            l->index = forms[i][1];
            return FM_OK;
        }
    }
    return no_weights(l, what);
}

fm_status fmr_listing_choose_shards(fmr_listing *l, fm_span index, const char *what)
{
    fm_json *root = NULL;
    fm_status rc = fm_json_parse(&root, index, l->index);
    const fm_json *map = fm_json_get(root, "weight_map");
    if (rc == FM_OK && fm_json_count(map) == 0)
        rc = fm_fail(FM_ECORRUPT, "%s: %s: field 'weight_map' must be an object that names files",
                     what, l->index);
    for (void *it = fm_json_iter(map); rc == FM_OK && it; it = fm_json_next(map, it)) {
        const char *file = fm_json_cstr(fm_json_iter_value(it), "");
        if (!take(l, file))
            rc = fm_fail(FM_ENOTFOUND, "%s: %s names the file '%.200s', which is not there", what,
                         l->index, file);
    }
    fm_json_free(root);
    return rc;
}

/* The other parts of a split GGUF whose first was named: "x-00001-of-00003.gguf". */
static fm_status take_parts(fmr_listing *l, const char *file, const char *what)
{
    static const char form[] = "-00001-of-00003.gguf";
    const size_t len = strlen(file), end = sizeof form - 1;
    const char *at = len > end ? file + len - end : "";
    unsigned count = 0;
    fm_status rc = FM_OK;
    if (strncmp(at, form, 10) != 0 || sscanf(at + 10, "%5u", &count) != 1 ||
        strcmp(at + 15, ".gguf") != 0)
        return FM_OK;
    for (unsigned i = 2; rc == FM_OK && i <= count && i <= l->count; i++) {
        char *part = fm_asprintf("%.*s-%05u%s", (int)(len - end), file, i, at + 6);
        if (!part)
            return FM_ENOMEM;
        if (!take(l, part))
            rc = fm_fail(FM_ENOTFOUND, "%s: has no file '%s', a part of '%s'", what, part, file);
        fm_free(part);
    }
    return rc;
}

fm_status fmr_listing_choose_one(fmr_listing *l, const char *file, const char *what)
{
    for (size_t i = 0; i < l->count; i++)
        l->file[i].take = false;
    if (take(l, file))
        return take_parts(l, file, what);
    fm_buf names;
    fm_buf_init(&names, 0);
    say_some(&names, l);
    fm_status rc = fm_fail(FM_ENOTFOUND, "%s: has no file '%s'; files of weights: %s", what, file,
                           fm_buf_cstr(&names));
    fm_buf_release(&names);
    return rc;
}

/* ==== refusals ==== */

/* What the Hub says itself, safe to show; "" where it says nothing. */
static void its_words(fm_buf *out, const fmr_answer *a)
{
    const fm_span text = fmr_answer_header(a, "X-Error-Message");
    const char *p = (const char *)text.data;
    for (size_t i = 0; text.data && i < text.len && i < 300; i++) {
        if (i == 0)
            fm_buf_str(out, " (the Hub says: ");
        fm_buf_char(out, (uint8_t)p[i] < 0x20 || (uint8_t)p[i] > 0x7e ? '?' : p[i]);
    }
    if (out->len > 0)
        fm_buf_char(out, ')');
}

static bool code_is(const fmr_answer *a, const char *code)
{
    return fm_span_eq_str(fmr_answer_header(a, "X-Error-Code"), code);
}

static fm_status refusal(const fmr_answer *a, const char *what, const char *page, bool has_token,
                         const char *words)
{
    if (code_is(a, "GatedRepo") && has_token)
        return fm_fail(FM_EINVAL,
                       "%s: is gated, and this token's account has no access yet: ask for it at "
                       "%s%s",
                       what, page, words);
    if (code_is(a, "GatedRepo"))
        return fm_fail(FM_EINVAL,
                       "%s: is gated: accept its conditions at %s, then give a token of that "
                       "account in HF_TOKEN%s",
                       what, page, words);
    if (code_is(a, "RevisionNotFound"))
        return fm_fail(FM_ENOTFOUND, "%s: has no such revision%s", what, words);
    if (code_is(a, "EntryNotFound"))
        return fm_fail(FM_ENOTFOUND, "%s: has no such file%s", what, words);
    if (code_is(a, "RepoNotFound") || a->status == 404 || (a->status == 401 && !has_token))
        return fm_fail(FM_ENOTFOUND, "%s: no such model, or it is private%s%s", what,
                       has_token ? " and this token does not see it"
                                 : ": give a token that sees it in HF_TOKEN",
                       words);
    if (a->status == 401)
        return fm_fail(FM_EINVAL, "%s: the Hub does not know this token (HF_TOKEN)%s", what, words);
    if (a->status == 403)
        return fm_fail(FM_EINVAL, "%s: the Hub refuses it%s", what, words);
    return fm_error_prefix(fmr_answer_check(a, what), "%s", "the Hub");
}

fm_status fmr_hub_explain(const fmr_answer *a, const char *what, const char *page, bool has_token)
{
    if (a->status < 300)
        return FM_OK;
    fm_buf words;
    fm_buf_init(&words, 0);
    its_words(&words, a);
    fm_status rc = refusal(a, what, page, has_token, fm_buf_cstr(&words));
    fm_buf_release(&words);
    return rc;
}
