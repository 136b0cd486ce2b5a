/* tok_ids FILE [CONFIG] [--plain] [--bare] - texts as JSON strings on stdin, one a line; ids and
 * the decoded text on stdout, one JSON list a line. The C side of tokenizers_diff.py. FILE is a
 * tokenizer.json, a tokenizer.model or a GGUF. --plain: special tokens in the text are text;
 * --bare: nothing is put around it. */
#include "infer/tokenizer.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/source.h"

#include <stdio.h>
#include <string.h>

static int complain(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, fm_error_text());
    return 1;
}

static fm_status answer(const fm_tokenizer *t, fm_span text, bool plain, bool bare, fm_ids *ids,
                        fm_buf *out)
{
    fm_buf decoded;
    fm_status rc;

    ids->count = 0;
    fm_buf_clear(out);
    fm_buf_init(&decoded, 0);
    rc = plain ? fm_tokenizer_encode_plain(t, text, !bare, ids)
               : fm_tokenizer_encode(t, text, !bare, ids);
    fm_buf_str(out, "[[");
    for (size_t i = 0; i < ids->count; i++)
        fm_buf_printf(out, i ? ",%d" : "%d", ids->id[i]);
    fm_buf_str(out, "],");
    if (rc == FM_OK)
        rc = fm_tokenizer_decode(t, ids->id, ids->count, false, &decoded);
    if (rc == FM_OK) {
        fm_json *s = fm_json_new_strn(fm_buf_cstr(&decoded), decoded.len);
        rc = s ? fm_json_write(out, s, FM_JSON_COMPACT) : FM_ENOMEM;
        fm_json_free(s);
    }
    fm_buf_char(out, ']');
    fm_buf_release(&decoded);
    return rc < 0 ? rc : fm_buf_ok(out);
}

static int run(const fm_tokenizer *t, bool plain, bool bare)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    fm_ids ids = {0};
    fm_buf out;
    int bad = 0;

    fm_buf_init(&out, 0);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        fm_json *v = NULL;
        fm_status rc = fm_json_parse(&v, fm_span_of(line, (size_t)n), "stdin");
        if (rc == FM_OK)
            rc = answer(t, fm_json_str(fm_json_at(v, 0)), plain, bare, &ids, &out);
        if (rc < 0)
            printf("[\"error\",\"%s\"]\n", fm_error_text());
        else
            printf("%s\n", fm_buf_cstr(&out));
        bad |= rc < 0;
        fm_json_free(v);
    }
    fm_ids_release(&ids);
    fm_buf_release(&out);
    return bad;
}

static fm_status read_entry(fm_buf *out, const fm_source *src, const char *path)
{
    const fm_entry *e = fm_tree_find(fm_source_tree(src), path);
    fm_provider p = fm_source_provider(src);

    return e ? fm_entry_read(out, &p, e) : FM_OK;
}

/* The tokenizer and its configuration out of an imported file. */
static fm_status import(fm_buf text[2], const char *path)
{
    fm_source *src = NULL;
    fm_status rc = fm_source_open(&src, path);

    for (size_t i = 0; rc == FM_OK && text[0].len == 0 && fm_tokenizer_paths[i]; i++)
        rc = read_entry(&text[0], src, fm_tokenizer_paths[i]);
    if (rc == FM_OK)
        rc = read_entry(&text[1], src, "tokenizer/tokenizer_config.json");
    fm_source_close(src);
    return rc;
}

int main(int argc, char **argv)
{
    const char *file[2] = {NULL, NULL};
    bool plain = false, bare = false;
    size_t files = 0;
    fm_tokenizer *t;
    fm_buf text[2];

    for (int i = 1; i < argc; i++) {
        plain = plain || strcmp(argv[i], "--plain") == 0;
        bare = bare || strcmp(argv[i], "--bare") == 0;
        if (argv[i][0] != '-' && files < 2)
            file[files++] = argv[i];
    }
    for (size_t i = 0; i < 2; i++) {
        fm_buf_init(&text[i], 0);
        size_t len = file[i] ? strlen(file[i]) : 0;
        bool gguf = len > 5 && strcmp(file[i] + len - 5, ".gguf") == 0;
        if (file[i] && !gguf && fm_read_file(&text[i], file[i], (size_t)1 << 28) < 0)
            return complain(file[i]);
    }
    if (text[0].len == 0 && file[0] && import(text, file[0]) < 0)
        return complain(file[0]);
    if (fm_tokenizer_open(&t, fm_buf_span(&text[0]), fm_buf_span(&text[1]), file[0]) < 0)
        return complain("open");
    int bad = run(t, plain, bare);
    fm_tokenizer_close(t);
    fm_buf_release(&text[0]);
    fm_buf_release(&text[1]);
    return bad;
}
