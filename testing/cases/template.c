/* template.c - one template, many cases: which fillings of its slots there are.
 *
 * slots is a list of rows ([{country: A, capital: B}, ...]) or a mapping of lists (their product);
 * a slot that is not in it is looked up in the lexicons, by its name with or without the digits at
 * its end. Choices are made one variable after another, and a variable that only some values need
 * (a slot within a slot) exists only below these values: nothing is made twice. */
#include "testing/cases/template.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

#define SLOTS_MAX 16
#define SAMPLE_TRIES 50 /* draws for each filling of a sample before it gives up on new ones */

typedef struct expansion {
    const fm_json *tmpl, *slots; /* slots: NULL or the mapping */
    const char *where;
    fmv_expansion_room *room;
    bool nested;
    size_t bytes; /* length of the template's texts */
    fmv_case_fn each;
    void *ctx;
    fmv_variable v[FMV_VARIABLES_MAX];
    fmv_filling f;
    unsigned depth; /* nesting of rows' values within rows' values */
    /* sample */
    uint64_t seed, stream, draws;
    fm_map *seen; /* NULL: all fillings */
    bool fresh;   /* the last draw was a new filling */
} expansion;

/* ==== variables ==== */

/* Charges a step. bytes: length of the text that is searched too. */
static fm_status step(expansion *x, size_t bytes)
{
    size_t cost = 1 + bytes / 64;
    if (x->room->steps < cost)
        return fm_fail(FM_ELIMIT, "%s: finding the fillings takes more than %zu steps", x->where,
                       FMV_EXPANSION_STEPS_MAX);
    x->room->steps -= cost;
    return FM_OK;
}

/* Finds the list that a name draws from. */
static bool list_of(const expansion *x, const char *name, fmv_words *out, bool *from_lexicon)
{
    const fm_json *own = fm_json_get(x->slots, name);
    const char *lexicon = fm_json_cstr(fm_json_get(own, "lexicon"), NULL);
    *from_lexicon = !own || lexicon;
    if (own && !lexicon) {
        *out = (fmv_words){NULL, own};
        return true;
    }
    lexicon = lexicon ? lexicon : name;
    *out = (fmv_words){fmv_lexicon_builtin(lexicon), fm_json_get(x->room->lexicons, lexicon)};
    return out->own || out->builtin;
}

static const fmv_variable *variable(const expansion *x, const char *name)
{
    for (size_t i = 0; i < x->f.count; i++)
        if (strcmp(x->v[i].name, name) == 0)
            return &x->v[i];
    return NULL;
}

static fm_status add_variable(expansion *x, const char *name, const fmv_words *list, bool lexicon)
{
    if (x->f.count == FMV_VARIABLES_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %u slots", x->where, FMV_VARIABLES_MAX);
    fmv_variable *v = &x->v[x->f.count++];
    *v = (fmv_variable){
        .list = *list, .lexicon = lexicon, .nested = list->own && (lexicon || x->nested)};
    snprintf(v->name, sizeof v->name, "%s", name);
    return FM_OK;
}

static fm_status need_variable(void *ctx, const char *name, size_t len);

/* Adds the slots that a row's value names; a cycle ends here, and the filling refuses it. */
static fm_status row_slots(expansion *x, const fm_json *value)
{
    fm_status rc =
        x->nested && fm_json_is(value, FM_JSON_STRING) ? step(x, fm_json_str(value).len) : FM_OK;
    if (rc < 0 || !x->nested || x->depth > FMV_NESTING_MAX || !fm_json_is(value, FM_JSON_STRING))
        return rc;
    x->depth++;
    rc = fmv_slots_of_text(fm_json_cstr(value, ""), need_variable, x);
    x->depth--;
    return rc;
}

/* Adds the variable for a name: as it is, without a field, or without digits at its end, the first
 * of these that is a list. */
static fm_status need_variable(void *ctx, const char *name, size_t len)
{
    expansion *x = ctx;
    char full[72], base[72];
    fmv_words list;
    bool lexicon;
    if (len == 0 || len >= sizeof full)
        return FM_OK; /* the filling refuses it */
    snprintf(full, sizeof full, "%.*s", (int)len, name);
    if (variable(x, full))
        return FM_OK;
    if (fm_json_get(x->f.row, full))
        return row_slots(x, fm_json_get(x->f.row, full));
    if (!list_of(x, full, &list, &lexicon)) {
        full[strcspn(full, ".")] = 0;
        if (!*full || fm_json_get(x->f.row, full) || variable(x, full))
            return FM_OK;
    }
    snprintf(base, sizeof base, "%s", full);
    size_t n = strlen(base);
    bool known = list_of(x, base, &list, &lexicon);
    while (!known && n > 1 && base[n - 1] >= '0' && base[n - 1] <= '9') {
        base[--n] = 0;
        known = list_of(x, base, &list, &lexicon);
    }
    return known ? add_variable(x, full, &list, lexicon) : FM_OK;
}

/* Whether texts of the template use slot `name` only with numbers ({name1}, {name2}). Then name
 * itself needs no value. */
typedef struct usage {
    const char *name;
    bool plain, numbered;
} usage;

static fm_status note_usage(void *ctx, const char *name, size_t len)
{
    usage *u = ctx;
    size_t n = strlen(u->name), digits = 0;
    if (len < n || strncmp(name, u->name, n) != 0)
        return FM_OK;
    while (n + digits < len && name[n + digits] >= '0' && name[n + digits] <= '9')
        digits++;
    bool ends = n + digits == len || name[n + digits] == '.';
    u->plain = u->plain || (ends && digits == 0);
    u->numbered = u->numbered || (ends && digits > 0);
    return FM_OK;
}

/* Adds the listed slots in their order, then the other names in texts. */
static fm_status first_variables(expansion *x)
{
    fm_status rc = step(x, x->bytes);
    x->f.count = 0;
    for (void *it = fm_json_iter(x->slots); it && rc == FM_OK; it = fm_json_next(x->slots, it)) {
        usage u = {fm_json_iter_key(it), false, false};
        fmv_words list;
        bool lexicon;
        rc = fmv_slots_of(x->tmpl, note_usage, &u, 0);
        if (rc == FM_OK && (u.plain || !u.numbered) && list_of(x, u.name, &list, &lexicon))
            rc = add_variable(x, u.name, &list, lexicon);
    }
    return rc == FM_OK ? fmv_slots_of(x->tmpl, need_variable, x, 0) : rc;
}

static bool same_list(const fmv_variable *a, const fmv_variable *b)
{
    return a->list.own == b->list.own && a->list.builtin == b->list.builtin;
}

/* Whether a variable before k has chosen this entry of the same list. */
static bool taken(const expansion *x, size_t k, size_t entry)
{
    for (size_t i = 0; i < k; i++)
        if (same_list(&x->v[i], &x->v[k]) && x->v[i].chosen == entry)
            return true;
    return false;
}

/* Adds the slots that the value chosen for k names. */
static fm_status below(expansion *x, size_t k)
{
    const fmv_variable *v = &x->v[k];
    const char *text = v->nested ? fm_json_cstr(fm_json_at(v->list.own, v->chosen), NULL) : NULL;
    fm_status rc = text ? step(x, strlen(text)) : FM_OK;
    return text && rc == FM_OK ? fmv_slots_of_text(text, need_variable, x) : rc;
}

static fm_status emit(expansion *x)
{
    fm_json *doc;
    x->f.number++;
    FM_TRY(fmv_fill(&doc, x->tmpl, &x->f));
    return x->each(x->ctx, doc);
}

/* ==== all fillings ==== */

static fm_status all_from(expansion *x, size_t k)
{
    fm_status rc = FM_OK;
    if (k == x->f.count)
        return emit(x);
    const size_t known = x->f.count, n = fmv_words_count(&x->v[k].list);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = step(x, 0);
        if (rc < 0 || taken(x, k, i))
            continue;
        x->v[k].chosen = i;
        rc = below(x, k);
        FM_THEN(rc, all_from(x, k + 1));
        x->f.count = known;
    }
    return rc;
}

/* ==== some of them ==== */

static uint64_t draw(expansion *x, uint64_t n)
{
    return fm_rng_below(x->seed, x->stream, x->draws++, n);
}

/* The entries of k's list that variables before it have chosen, ascending. */
static size_t used_entries(const expansion *x, size_t k, size_t used[FMV_VARIABLES_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < k; i++) {
        size_t at = n;
        if (!same_list(&x->v[i], &x->v[k]))
            continue;
        for (; at > 0 && used[at - 1] > x->v[i].chosen; at--)
            used[at] = used[at - 1];
        used[at] = x->v[i].chosen;
        n++;
    }
    return n;
}

/* Draws one filling at random; FM_OK without `fresh` where it is not new or has no free value. */
static fm_status draw_one(expansion *x, const fm_json *rows)
{
    fm_buf key;
    fm_status rc = FM_OK;
    fm_buf_init(&key, 0);
    x->fresh = false;
    if (rows) {
        size_t i = (size_t)draw(x, fm_json_count(rows));
        x->f.row = fm_json_at(rows, i);
        fm_buf_u64(&key, i);
    }
    rc = first_variables(x);
    for (size_t k = 0; rc == FM_OK && k < x->f.count; k++) {
        size_t used[FMV_VARIABLES_MAX], n = fmv_words_count(&x->v[k].list);
        size_t count = used_entries(x, k, used);
        if (count >= n) {
            fm_buf_release(&key);
            return step(x, 0);
        }
        size_t at = (size_t)draw(x, n - count);
        for (size_t i = 0; i < count && used[i] <= at; i++)
            at++;
        x->v[k].chosen = at;
        fm_buf_u64(&key, at);
        rc = step(x, 0);
        FM_THEN(rc, below(x, k));
    }
    FM_THEN(rc, fm_buf_ok(&key));
    if (rc == FM_OK && !fm_map_has(x->seen, fm_buf_cstr(&key), key.len)) {
        rc = fm_map_put(x->seen, fm_buf_cstr(&key), key.len, x, NULL);
        x->fresh = rc == FM_OK;
    }
    fm_buf_release(&key);
    return rc;
}

static fm_status sample(expansion *x, const fm_json *rows, size_t n)
{
    size_t made = 0;
    fm_status rc = fm_map_new(&x->seen);
    for (size_t tries = 0; rc == FM_OK && made < n && tries < SAMPLE_TRIES * n; tries++) {
        rc = draw_one(x, rows);
        if (rc == FM_OK && x->fresh)
            rc = emit(x);
        made += rc == FM_OK && x->fresh;
    }
    fm_map_free(x->seen);
    if (rc == FM_OK && made < n)
        rc = fm_fail(FM_EINVAL, "%s: 'sample' wants %zu different fillings, there seem to be %zu",
                     x->where, n, made);
    return rc;
}

/* ==== the template ==== */

static fm_status whole_number(size_t *out, const fm_json *v, const char *key, double low,
                              double high, const char *where)
{
    double n = fm_json_real(v, NAN);
    if (!v)
        return FM_OK;
    if (!(n >= low && n <= high && floor(n) == n))
        return fm_fail(FM_EINVAL, "%s: '%s' wants a whole number, %.0f to %.0f", where, key, low,
                       high);
    *out = (size_t)n;
    return FM_OK;
}

static fm_status check_rows(const fm_json *rows, const char *where)
{
    for (size_t i = 0; i < fm_json_count(rows); i++)
        if (!fm_json_is(fm_json_at(rows, i), FM_JSON_OBJECT))
            return fm_fail(FM_EINVAL, "%s: slots[%zu] wants a mapping of slot to value", where, i);
    return FM_OK;
}

static fm_status check_lists(const expansion *x, const fm_json *slots)
{
    size_t n = 0;
    for (void *it = fm_json_iter(slots); it; it = fm_json_next(slots, it), n++) {
        const fm_json *v = fm_json_iter_value(it);
        const char *lexicon = fm_json_cstr(fm_json_get(v, "lexicon"), NULL);
        fmv_words w;

        if (lexicon && fm_json_count(v) == 1)
            FM_TRY(fmv_words_find(&w, x->room->lexicons, lexicon, x->where));
        else if (!fm_json_is(v, FM_JSON_ARRAY) || fm_json_count(v) == 0 || n == SLOTS_MAX)
            return fm_fail(FM_EINVAL,
                           "%s: slots: up to %d lists, none of them empty, or {lexicon: NAME}",
                           x->where, SLOTS_MAX);
    }
    return FM_OK;
}

static size_t text_bytes(const fm_json *v, int depth)
{
    size_t sum = fm_json_str(v).len;
    bool array = fm_json_is(v, FM_JSON_ARRAY);
    for (size_t i = 0; array && depth < 20 && i < fm_json_count(v); i++)
        sum += 16 + text_bytes(fm_json_at(v, i), depth + 1);
    for (void *it = array || depth >= 20 ? NULL : fm_json_iter(v); it; it = fm_json_next(v, it))
        if (depth > 0 || strcmp(fm_json_iter_key(it), "slots") != 0)
            sum += 16 + text_bytes(fm_json_iter_value(it), depth + 1);
    return sum;
}

static fm_status expand_all(expansion *x, const fm_json *rows)
{
    for (size_t i = 0; i < (rows ? fm_json_count(rows) : 1); i++) {
        x->f.row = rows ? fm_json_at(rows, i) : NULL;
        FM_TRY(first_variables(x));
        if (!rows && x->f.count == 0)
            return fm_fail(FM_EINVAL,
                           "%s: 'slots' wants a list of rows, or lists by name; or name lexicons",
                           x->where);
        FM_TRY(all_from(x, 0));
    }
    if (x->f.number == 0)
        return fm_fail(FM_EINVAL,
                       "%s: has no filling: numbered slots want different entries of one list, and "
                       "it has too few",
                       x->where);
    return FM_OK;
}

fm_status fmv_template_expand(const fm_json *tmpl, const char *what, fmv_expansion_room *room,
                              fmv_case_fn each, void *ctx)
{
    const fm_json *slots = fm_json_get(tmpl, "slots"), *nested = fm_json_get(tmpl, "nested");
    const char *name = fm_json_cstr(fm_json_get(tmpl, "name"), "");
    const fm_json *rows = fm_json_is(slots, FM_JSON_ARRAY) ? slots : NULL;
    size_t n = 0, seed = 0;
    char where[512];
    snprintf(where, sizeof where, "%.200s: template '%.200s'", what, name);
    expansion *x = fm_calloc(1, sizeof *x);
    if (!x)
        return FM_ENOMEM;
    *x = (expansion){.tmpl = tmpl,
                     .slots = rows ? NULL : slots,
                     .where = where,
                     .room = room,
                     .nested = fm_json_bool(nested, false),
                     .each = each,
                     .ctx = ctx,
                     .stream = fmv_stream_of(fm_span_str(name), 0)};
    x->bytes = text_bytes(tmpl, 0);
    x->f = (fmv_filling){.where = where, .nested = x->nested, .v = x->v, .room = room};
    fm_status rc = FM_OK;
    if (slots && (fm_json_count(slots) == 0 || (!rows && !fm_json_is(slots, FM_JSON_OBJECT))))
        rc = fm_fail(FM_EINVAL, "%s: 'slots' wants a list of rows, or lists by name", where);
    if (rc == FM_OK && nested && !fm_json_is(nested, FM_JSON_BOOL))
        rc = fm_fail(FM_EINVAL, "%s: 'nested' must be true or false", where);
    FM_THEN(rc, rows ? check_rows(rows, where) : check_lists(x, slots));
    FM_THEN(rc, whole_number(&n, fm_json_get(tmpl, "sample"), "sample", 1, FMV_CASES_MAX, where));
    FM_THEN(rc,
            whole_number(&seed, fm_json_get(tmpl, "seed"), "seed", 0, 9007199254740992.0, where));
    if (rc == FM_OK && fm_json_get(tmpl, "seed") && !n)
        rc = fm_fail(FM_EINVAL, "%s: 'seed' says nothing here: it goes with 'sample'", where);
    x->seed = seed;
    FM_THEN(rc, n ? sample(x, rows, n) : expand_all(x, rows));
    fm_free(x);
    return rc;
}
