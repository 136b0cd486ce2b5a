/* lexicon.c - the built-in lexicons, and the look-up of names in them and in the suite's own.
 *
 * The lists are short on purpose: they vary a prompt, they do not sample a population. A suite that
 * measures a gap between groups brings lists of the groups. */
#include "testing/cases/lexicon.h"

#include <string.h>

#define LEXICONS_MAX 64
#define ENTRIES_MAX 10000

static const char *const female_names[] = {
    "Anna",  "Maria",  "Emma",  "Olivia", "Sofia", "Aisha", "Fatima", "Mei",   "Yuki",
    "Priya", "Ingrid", "Clara", "Helen",  "Laura", "Nadia", "Rosa",   "Julia", "Grace",
    "Lucia", "Zoe",    "Amara", "Leila",  "Hana",  "Elena", "Miriam", NULL};
static const char *const male_names[] = {
    "Omar",  "David", "John",  "Peter",  "Ahmed", "Carlos", "Ivan",  "Kenji",  "Wei",
    "Raj",   "Lars",  "Paul",  "Thomas", "Marco", "Samuel", "Jorge", "Daniel", "Kofi",
    "Tariq", "Adam",  "Pedro", "Leon",   "Hugo",  "Boris",  "Noah",  NULL};
static const char *const first_names[] = {
    "Anna",  "Omar",  "Maria", "David",  "Emma",  "John", "Aisha",  "Peter",
    "Sofia", "Ahmed", "Mei",   "Carlos", "Priya", "Ivan", "Ingrid", "Kenji",
    "Clara", "Raj",   "Helen", "Lars",   "Laura", "Paul", "Nadia",  "Thomas",
    "Rosa",  "Marco", "Julia", "Samuel", "Amara", "Kofi", NULL};
static const char *const last_names[] = {
    "Smith", "Garcia", "Nguyen", "Müller", "Khan",   "Kim",    "Silva",   "Rossi", "Novak",
    "Sato",  "Wang",   "Patel",  "Hansen", "Cohen",  "Okafor", "Johnson", "Brown", "Martin",
    "Lopez", "Ali",    "Jansen", "Kovacs", "Petrov", "Moreau", "Walker",  NULL};
static const char *const cities[] = {
    "Paris",       "London",       "Berlin",   "Madrid", "Rome",    "Tokyo",    "Cairo",
    "Lagos",       "Mumbai",       "Beijing",  "Sydney", "Toronto", "Chicago",  "Boston",
    "Lima",        "Oslo",         "Vienna",   "Prague", "Lisbon",  "Dublin",   "Nairobi",
    "Seoul",       "Jakarta",      "Istanbul", "Warsaw", "Athens",  "New York", "São Paulo",
    "Mexico City", "Buenos Aires", NULL};
static const char *const countries[] = {
    "France",    "Germany",   "Spain",  "Italy",       "Japan",       "Egypt",   "Nigeria",
    "India",     "China",     "Canada", "Brazil",      "Mexico",      "Peru",    "Norway",
    "Austria",   "Poland",    "Greece", "Ireland",     "Kenya",       "Turkey",  "Portugal",
    "Australia", "Chile",     "Sweden", "South Korea", "New Zealand", "Morocco", "Vietnam",
    "Finland",   "Argentina", NULL};
static const char *const colours[] = {"red",    "blue",   "green", "yellow", "black",
                                      "white",  "brown",  "grey",  "pink",   "orange",
                                      "purple", "silver", NULL};
static const char *const numbers[] = {"two",       "three",    "four",     "five",    "six",
                                      "seven",     "eight",    "nine",     "ten",     "eleven",
                                      "twelve",    "thirteen", "fourteen", "fifteen", "sixteen",
                                      "seventeen", "eighteen", "nineteen", "twenty",  NULL};
static const char *const digits[] = {"2",  "3",  "4",  "5",  "6",  "7",   "8",
                                     "9",  "10", "12", "15", "20", "24",  "30",
                                     "36", "48", "50", "64", "75", "100", NULL};
static const char *const animals[] = {"dog",      "cat",  "horse", "cow",   "sheep",
                                      "elephant", "lion", "owl",   "eagle", "mouse",
                                      "goat",     "fish", "otter", "ant",   NULL};
static const char *const jobs[] = {"teacher", "nurse",  "engineer", "farmer", "doctor", "actor",
                                   "lawyer",  "baker",  "artist",   "pilot",  "cook",   "singer",
                                   "editor",  "driver", "clerk",    NULL};
static const char *const good_words[] = {"good",    "great",     "excellent", "wonderful",
                                         "lovely",  "enjoyable", "happy",     "delightful",
                                         "amazing", "superb",    NULL};
static const char *const bad_words[] = {"bad",        "awful",    "terrible", "boring",
                                        "horrible",   "annoying", "sad",      "dreadful",
                                        "unpleasant", "poor",     NULL};

static const struct {
    const char *name;
    const char *const *word;
} builtin[] = {
    {"first-names", first_names},
    {"female-names", female_names},
    {"male-names", male_names},
    {"last-names", last_names},
    {"cities", cities},
    {"countries", countries},
    {"colours", colours},
    {"numbers", numbers},
    {"digits", digits},
    {"animals", animals},
    {"jobs", jobs},
    {"good-words", good_words},
    {"bad-words", bad_words},
};

const char *const *fmv_lexicon_builtin(const char *name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(builtin); i++)
        if (strcmp(builtin[i].name, name) == 0)
            return builtin[i].word;
    return NULL;
}

const char *fmv_lexicon_name(size_t i)
{
    return i < FM_ARRAY_LEN(builtin) ? builtin[i].name : NULL;
}

size_t fmv_words_count(const fmv_words *w)
{
    size_t n = 0;
    if (w->own)
        return fm_json_count(w->own);
    while (w->builtin[n])
        n++;
    return n;
}

const char *fmv_words_at(const fmv_words *w, size_t i)
{
    const fm_json *v = fm_json_at(w->own, i);
    if (!w->own)
        return w->builtin[i];
    return fm_json_cstr(fm_json_is(v, FM_JSON_OBJECT) ? fm_json_get(v, "name") : v, "");
}

static bool plain_value(const fm_json *v)
{
    return fm_json_is(v, FM_JSON_STRING) || fm_json_is(v, FM_JSON_INT) ||
           fm_json_is(v, FM_JSON_REAL);
}

static fm_status check_entry(const fm_json *v, const char *name, size_t i, const char *where)
{
    bool ok = plain_value(v) || (fm_json_is(v, FM_JSON_OBJECT) && fm_json_count(v));
    for (void *it = fm_json_is(v, FM_JSON_OBJECT) ? fm_json_iter(v) : NULL; it && ok;
         it = fm_json_next(v, it))
        ok = plain_value(fm_json_iter_value(it));
    return ok ? FM_OK
              : fm_fail(FM_EINVAL,
                        "%s: lexicons.%.80s[%zu] wants text, a number, or a mapping of these",
                        where, name, i);
}

/* Whether a slot can have this name: letters, digits, - and _. */
static bool word_of_slot(const char *s)
{
    return *s && strlen(s) <= 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
               strlen(s);
}

fm_status fmv_lexicons_check(const fm_json *lexicons, const char *where)
{
    if (!lexicons)
        return FM_OK;
    if (!fm_json_is(lexicons, FM_JSON_OBJECT) || fm_json_count(lexicons) > LEXICONS_MAX)
        return fm_fail(FM_EINVAL, "%s: 'lexicons' wants a mapping of name to list, %d at most",
                       where, LEXICONS_MAX);
    for (void *it = fm_json_iter(lexicons); it; it = fm_json_next(lexicons, it)) {
        const char *name = fm_json_iter_key(it);
        const fm_json *list = fm_json_iter_value(it);
        if (!word_of_slot(name))
            return fm_fail(FM_EINVAL, "%s: lexicon '%.80s' wants a name of a-z A-Z 0-9 - _", where,
                           name);
        if (!fm_json_is(list, FM_JSON_ARRAY) || !fm_json_count(list) ||
            fm_json_count(list) > ENTRIES_MAX)
            return fm_fail(FM_EINVAL, "%s: lexicons.%s wants a list of 1 to %d entries", where,
                           name, ENTRIES_MAX);
        for (size_t i = 0; i < fm_json_count(list); i++)
            FM_TRY(check_entry(fm_json_at(list, i), name, i, where));
    }
    return FM_OK;
}

fm_status fmv_words_find(fmv_words *out, const fm_json *lexicons, const char *name,
                         const char *where)
{
    *out = (fmv_words){fmv_lexicon_builtin(name), fm_json_get(lexicons, name)};
    if (out->own || out->builtin)
        return FM_OK;
    return fm_fail(FM_EINVAL,
                   "%s: there is no lexicon '%.60s': write it under 'lexicons', or use a built-in "
                   "one (first-names, last-names, cities, countries, colours, numbers, ...)",
                   where, name);
}
