/* template_fill.c - writes a filling: every string of a template with its slots replaced. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/cases/template.h"

#define FILL_DEPTH_MAX 16
/* cost of a value in addition to its text, so that empty values are not free */
#define NODE_BYTES 32

/* ==== slots in a text ==== */

size_t fmv_slot_at(fmv_slot_ref *out, const char *text)
{
    size_t len = strcspn(text + 1, "{}");
    *out = (fmv_slot_ref){text + 1, len, 0};
    if (text[1 + len] != '}')
        return 0;
    if (len > 2 && text[2] == ':' && (text[1] == 'a' || text[1] == 'A'))
        *out = (fmv_slot_ref){text + 3, len - 2, text[1]};
    return len + 2;
}

fm_status fmv_slots_of_text(const char *text, fmv_ref_fn each, void *ctx)
{
    fmv_slot_ref ref;

    for (const char *p = text; *p;) {
        size_t n = 1;
        if ((p[0] == '{' && p[1] == '{') || (p[0] == '}' && p[1] == '}')) {
            n = 2;
        } else if (*p == '{') {
            n = fmv_slot_at(&ref, p);
            if (n == 0)
                break; /* the filling reports it */
            FM_TRY(each(ctx, ref.name, ref.len));
        }
        p += n;
    }
    return FM_OK;
}

fm_status fmv_slots_of(const fm_json *v, fmv_ref_fn each, void *ctx, int depth)
{
    bool array = fm_json_is(v, FM_JSON_ARRAY);
    if (depth > FILL_DEPTH_MAX)
        return FM_OK; /* the filling refuses it */
    if (fm_json_is(v, FM_JSON_STRING))
        return fmv_slots_of_text(fm_json_cstr(v, ""), each, ctx);
    for (size_t i = 0; array && i < fm_json_count(v); i++)
        FM_TRY(fmv_slots_of(fm_json_at(v, i), each, ctx, depth + 1));
    for (void *it = array ? NULL : fm_json_iter(v); it; it = fm_json_next(v, it))
        if (depth > 0 || strcmp(fm_json_iter_key(it), "slots") != 0)
            FM_TRY(fmv_slots_of(fm_json_iter_value(it), each, ctx, depth + 1));
    return FM_OK;
}

/* ==== values ==== */

/* The meaning of a name in a filling: a field of the row, or the value of a variable. */
typedef struct found {
    const fm_json *value; /* NULL: word */
    const char *word;     /* from a built-in lexicon */
    fmv_variable *of;     /* NULL: from the row */
    bool field;           /* a field of a mapping: its text is written as it is */
} found;

static bool find(found *out, fmv_filling *f, const char *name)
{
    memset(out, 0, sizeof *out);
    out->value = fm_json_get(f->row, name);
    for (size_t i = 0; !out->value && i < f->count; i++) {
        fmv_variable *v = &f->v[i];
        if (strcmp(v->name, name) != 0)
            continue;
        out->of = v;
        out->value = v->list.own ? fm_json_at(v->list.own, v->chosen) : NULL;
        out->word = v->list.own ? NULL : v->list.builtin[v->chosen];
        return true;
    }
    return out->value != NULL;
}

/* Finds "x", else "x.field" where x is a mapping. */
static fm_status find_path(found *out, fmv_filling *f, const char *name, size_t len)
{
    char key[160];
    if (len > 0 && len < sizeof key) {
        snprintf(key, sizeof key, "%.*s", (int)len, name);
        if (find(out, f, key))
            return FM_OK;
        char *dot = strchr(key, '.');
        if (dot)
            *dot = 0;
        if (dot && find(out, f, key)) {
            const fm_json *field = fm_json_get(out->value, dot + 1);
            if (field) {
                out->value = field;
                out->field = true;
                return FM_OK;
            }
            return fm_fail(FM_EINVAL, "%s: '{%.*s}': this value of '%s' has no field '%.60s'",
                           f->where, (int)FM_MIN(len, (size_t)60), name, key, dot + 1);
        }
    }
    return fm_fail(FM_EINVAL, "%s: '{%.*s}' names no slot ('{{' writes a brace)", f->where,
                   (int)FM_MIN(len, (size_t)60), name);
}

/* ==== articles ==== */

static bool begins(const char *word, const char *const *list)
{
    for (; *list; list++) {
        size_t i = 0;
        while ((*list)[i] && (word[i] | 0x20) == (*list)[i])
            i++;
        if (!(*list)[i])
            return true;
    }
    return false;
}

/* "an" before the sound of a vowel, judged by spelling: an initialism is read as a word. */
static const char *article(const char *word, int form)
{
    static const char *const silent[] = {"hour", "honest", "honour", "honor", "heir", NULL};
    static const char *const consonant[] = {"uni",  "use", "usu", "eu",  "one",
                                            "once", "ute", "ura", "ubi", NULL};
    static const char *const vowel_after_all[] = {"unim", "unin", "unid", NULL};
    bool vowel = *word && strchr("aeiouAEIOU", *word) != NULL;
    if (begins(word, silent))
        vowel = true;
    else if (begins(word, consonant) && !begins(word, vowel_after_all))
        vowel = false;
    return form == 'A' ? (vowel ? "An " : "A ") : (vowel ? "an " : "a ");
}

/* ==== filling ==== */

static fm_status fill_text(fm_buf *out, fmv_filling *f, const char *text, unsigned depth);

static fm_status write_value(fm_buf *out, fmv_filling *f, const found *x, unsigned depth)
{
    const char *text = x->word ? x->word : fm_json_cstr(x->value, NULL);
    bool plain = x->field || !(x->of ? x->of->nested : f->nested);
    if (!text && x->of && x->of->lexicon && fm_json_is(x->value, FM_JSON_OBJECT)) {
        text = fm_json_cstr(fm_json_get(x->value, "name"), NULL);
        plain = true;
        if (!text)
            return fm_fail(FM_EINVAL, "%s: '{%s}' is a mapping: say which field, '{%s.field}'",
                           f->where, x->of->name, x->of->name);
    }
    if (!text)
        return fm_json_write(out, x->value, FM_JSON_COMPACT);
    if (plain) {
        fm_buf_str(out, text);
        return fm_buf_ok(out);
    }
    if (depth >= FMV_NESTING_MAX)
        return fm_fail(FM_ELIMIT, "%s: slots within slots deeper than %u: a cycle?", f->where,
                       FMV_NESTING_MAX);
    if (x->of && x->of->open)
        return fm_fail(FM_EINVAL, "%s: the value of slot '%s' holds the slot itself", f->where,
                       x->of->name);
    if (x->of)
        x->of->open = true;
    fm_status rc = fill_text(out, f, text, depth + 1);
    if (x->of)
        x->of->open = false;
    return rc;
}

static fm_status write_slot(fm_buf *out, fmv_filling *f, const fmv_slot_ref *ref, unsigned depth)
{
    found x;
    fm_buf word;
    if (f->room->steps == 0)
        return fm_fail(FM_ELIMIT, "%s: the suite's templates fill in more than %zu slots", f->where,
                       FMV_EXPANSION_STEPS_MAX);
    f->room->steps--;
    fm_status rc = find_path(&x, f, ref->name, ref->len);
    if (rc < 0 && ref->len == 1 && *ref->name == '#') {
        fm_error_clear();
        fm_buf_printf(out, "%zu", f->number);
        return fm_buf_ok(out);
    }
    if (rc < 0 || !ref->article)
        return rc < 0 ? rc : write_value(out, f, &x, depth);
    fm_buf_init(&word, f->room->bytes + 1);
    rc = write_value(&word, f, &x, depth);
    if (rc == FM_OK) {
        fm_buf_str(out, article(fm_buf_cstr(&word), ref->article));
        fm_buf_append(out, word.data, word.len);
        rc = fm_buf_ok(out);
    }
    fm_buf_release(&word);
    return rc;
}

/* "{x}" becomes the filling's x; "{{" and "}}" are braces; a name that is no slot is an error. */
static fm_status fill_text(fm_buf *out, fmv_filling *f, const char *text, unsigned depth)
{
    for (const char *p = text; *p;) {
        if ((p[0] == '{' && p[1] == '{') || (p[0] == '}' && p[1] == '}')) {
            fm_buf_char(out, *p);
            p += 2;
        } else if (*p == '{') {
            fmv_slot_ref ref;
            size_t len = fmv_slot_at(&ref, p);
            if (len == 0)
                return fm_fail(FM_EINVAL, "%s: '{%.*s' has no end ('{{' writes a brace)", f->where,
                               (int)FM_MIN(ref.len, (size_t)60), p + 1);
            FM_TRY(write_slot(out, f, &ref, depth));
            p += len;
        } else {
            size_t n = strcspn(p, "{}");
            n += n == 0; /* a '}' alone */
            fm_buf_append(out, p, n);
            p += n;
        }
    }
    return fm_buf_ok(out);
}

static fm_status fill_string(fm_json **out, const char *text, fmv_filling *f)
{
    fm_buf b;
    size_t *room = &f->room->bytes;
    fm_buf_init(&b, *room + 1); /* a maximum of 0 would mean the default */
    fm_status rc = fill_text(&b, f, text, 0);
    if ((rc == FM_ELIMIT && b.failed == FM_ELIMIT) || (rc == FM_OK && b.len > *room))
        rc = fm_fail(FM_ELIMIT, "%s: the suite's templates write more than %zu bytes", f->where,
                     FMV_EXPANDED_BYTES_MAX);
    if (rc == FM_OK && !(*out = fm_json_new_strn(fm_buf_cstr(&b), b.len)))
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        *room -= b.len;
    fm_buf_release(&b);
    return rc;
}

/* Whether key says how a template is filled; such keys are not keys of a case. */
static bool of_template(const char *key)
{
    return strcmp(key, "slots") == 0 || strcmp(key, "sample") == 0 || strcmp(key, "seed") == 0 ||
           strcmp(key, "nested") == 0;
}

static fm_status fill(fm_json **out, const fm_json *v, fmv_filling *f, int depth)
{
    fm_status rc = FM_OK;
    *out = NULL;
    if (depth > FILL_DEPTH_MAX || f->room->bytes < NODE_BYTES)
        return fm_fail(FM_ELIMIT,
                       "%s: nested deeper than %d, or the suite's templates write more "
                       "than %zu bytes",
                       f->where, FILL_DEPTH_MAX, FMV_EXPANDED_BYTES_MAX);
    f->room->bytes -= NODE_BYTES;
    if (fm_json_is(v, FM_JSON_STRING))
        return fill_string(out, fm_json_cstr(v, ""), f);
    if (!fm_json_is(v, FM_JSON_ARRAY) && !fm_json_is(v, FM_JSON_OBJECT)) {
        *out = fm_json_copy(v);
        return *out ? FM_OK : FM_ENOMEM;
    }
    bool array = fm_json_is(v, FM_JSON_ARRAY);
    fm_json *made = array ? fm_json_new_array() : fm_json_new_object(), *part = NULL;
    if (!made)
        return FM_ENOMEM;
    for (size_t i = 0; array && rc == FM_OK && i < fm_json_count(v); i++) {
        rc = fill(&part, fm_json_at(v, i), f, depth + 1);
        FM_THEN(rc, fm_json_push(made, part));
    }
    for (void *it = array ? NULL : fm_json_iter(v); rc == FM_OK && it; it = fm_json_next(v, it)) {
        if (depth == 0 && of_template(fm_json_iter_key(it)))
            continue;
        rc = fill(&part, fm_json_iter_value(it), f, depth + 1);
        FM_THEN(rc, fm_json_set(made, fm_json_iter_key(it), part));
    }
    if (rc < 0)
        fm_json_free(made);
    else
        *out = made;
    return rc;
}

fm_status fmv_fill(fm_json **out, const fm_json *tmpl, fmv_filling *f)
{
    for (size_t i = 0; i < f->count; i++)
        f->v[i].open = false;
    return fill(out, tmpl, f, 0);
}
