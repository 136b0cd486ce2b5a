/* grapheme.c - extended grapheme clusters (UAX 29), as the Rust crate unicode-segmentation cuts
 * them. Classes are unicode_15.c's with what came later, and the conjuncts of Indic scripts
 * (rule GB9c), which it does not know. */
#include "infer/tokenizer/internal.h"

#include <utf8proc.h>

/* Extend */
static const fmi_range new_extend[] = {
    {0x897, 0x897},     {0xcc0, 0xcc0},     {0xcc7, 0xcc8},     {0xcca, 0xccb},
    {0x1715, 0x1715},   {0x1734, 0x1734},   {0x1acf, 0x1add},   {0x1ae0, 0x1aeb},
    {0x1b3b, 0x1b3b},   {0x1b3d, 0x1b3d},   {0x1b43, 0x1b44},   {0x1baa, 0x1baa},
    {0x1bf2, 0x1bf3},   {0xa953, 0xa953},   {0xa9c0, 0xa9c0},   {0x10d69, 0x10d6d},
    {0x10efa, 0x10efc}, {0x111c0, 0x111c0}, {0x11235, 0x11235}, {0x1134d, 0x1134d},
    {0x113b8, 0x113b8}, {0x113bb, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
    {0x113c7, 0x113c9}, {0x113ce, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2},
    {0x116b6, 0x116b6}, {0x1193d, 0x1193d}, {0x11b60, 0x11b60}, {0x11b62, 0x11b64},
    {0x11b66, 0x11b66}, {0x11f41, 0x11f41}, {0x11f5a, 0x11f5a}, {0x1611e, 0x16129},
    {0x1612d, 0x1612f}, {0x16ff0, 0x16ff1}, {0x1d166, 0x1d166}, {0x1d16d, 0x1d16d},
    {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef},
    {0x1e6f5, 0x1e6f5},
};

/* SpacingMark */
static const fmi_range new_spacing[] = {
    {0x113b9, 0x113ba}, {0x113ca, 0x113ca}, {0x113cc, 0x113cd}, {0x1171e, 0x1171e},
    {0x11b61, 0x11b61}, {0x11b65, 0x11b65}, {0x11b67, 0x11b67}, {0x1612a, 0x1612c},
};

/* Prepend */
static const fmi_range new_prepend[] = {
    {0x113d1, 0x113d1},
};

/* no longer Prepend */
static const fmi_range new_other[] = {
    {0x11a3a, 0x11a3a},
};

/* InCB=Linker */
static const fmi_range indic_linker[] = {
    {0x94d, 0x94d},     {0x9cd, 0x9cd},     {0xacd, 0xacd},     {0xb4d, 0xb4d},
    {0xc4d, 0xc4d},     {0xd4d, 0xd4d},     {0x1039, 0x1039},   {0x17d2, 0x17d2},
    {0x1a60, 0x1a60},   {0x1b44, 0x1b44},   {0x1bab, 0x1bab},   {0xa9c0, 0xa9c0},
    {0xaaf6, 0xaaf6},   {0x10a3f, 0x10a3f}, {0x11133, 0x11133}, {0x113d0, 0x113d0},
    {0x1193e, 0x1193e}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11f42, 0x11f42},
};

/* InCB=Consonant */
static const fmi_range indic_consonant[] = {
    {0x915, 0x939},     {0x958, 0x95f},     {0x978, 0x97f},     {0x995, 0x9a8},
    {0x9aa, 0x9b0},     {0x9b2, 0x9b2},     {0x9b6, 0x9b9},     {0x9dc, 0x9dd},
    {0x9df, 0x9df},     {0x9f0, 0x9f1},     {0xa95, 0xaa8},     {0xaaa, 0xab0},
    {0xab2, 0xab3},     {0xab5, 0xab9},     {0xaf9, 0xaf9},     {0xb15, 0xb28},
    {0xb2a, 0xb30},     {0xb32, 0xb33},     {0xb35, 0xb39},     {0xb5c, 0xb5d},
    {0xb5f, 0xb5f},     {0xb71, 0xb71},     {0xc15, 0xc28},     {0xc2a, 0xc39},
    {0xc58, 0xc5a},     {0xd15, 0xd3a},     {0x1000, 0x102a},   {0x103f, 0x103f},
    {0x1050, 0x1055},   {0x105a, 0x105d},   {0x1061, 0x1061},   {0x1065, 0x1066},
    {0x106e, 0x1070},   {0x1075, 0x1081},   {0x108e, 0x108e},   {0x1780, 0x17b3},
    {0x1a20, 0x1a54},   {0x1b0b, 0x1b0c},   {0x1b13, 0x1b33},   {0x1b45, 0x1b4c},
    {0x1b83, 0x1ba0},   {0x1bae, 0x1baf},   {0x1bbb, 0x1bbd},   {0xa989, 0xa98b},
    {0xa98f, 0xa9b2},   {0xa9e0, 0xa9e4},   {0xa9e7, 0xa9ef},   {0xa9fa, 0xa9fe},
    {0xaa60, 0xaa6f},   {0xaa71, 0xaa73},   {0xaa7a, 0xaa7a},   {0xaa7e, 0xaa7f},
    {0xaae0, 0xaaea},   {0xabc0, 0xabda},   {0x10a00, 0x10a00}, {0x10a10, 0x10a13},
    {0x10a15, 0x10a17}, {0x10a19, 0x10a35}, {0x11103, 0x11126}, {0x11144, 0x11144},
    {0x11147, 0x11147}, {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e},
    {0x11390, 0x113b5}, {0x11900, 0x11906}, {0x11909, 0x11909}, {0x1190c, 0x11913},
    {0x11915, 0x11916}, {0x11918, 0x1192f}, {0x11a00, 0x11a00}, {0x11a0b, 0x11a32},
    {0x11a50, 0x11a50}, {0x11a5c, 0x11a83}, {0x11f04, 0x11f10}, {0x11f12, 0x11f33},
};

static int class_of(uint32_t cp)
{
    if (cp >= 0x20 && cp < 0x7f)
        return UTF8PROC_BOUNDCLASS_OTHER;
    if (FMI_IN(new_extend, cp))
        return UTF8PROC_BOUNDCLASS_EXTEND;
    if (FMI_IN(new_spacing, cp))
        return UTF8PROC_BOUNDCLASS_SPACINGMARK;
    if (FMI_IN(new_prepend, cp))
        return UTF8PROC_BOUNDCLASS_PREPEND;
    if (FMI_IN(new_other, cp))
        return UTF8PROC_BOUNDCLASS_OTHER;
    return fmi_boundclass(cp);
}

typedef struct state {
    int last;
    bool pict;      /* a pictograph and only Extend since */
    bool pict_zwj;  /* the same, then a joiner */
    bool regional;  /* an odd number of regional indicators */
    bool consonant; /* an Indic consonant, and only Extend and linkers since */
    bool linker;    /* with a linker among them */
} state;

static bool hangul_joins(int a, int b)
{
    if (a == UTF8PROC_BOUNDCLASS_L)
        return b == UTF8PROC_BOUNDCLASS_L || b == UTF8PROC_BOUNDCLASS_V ||
               b == UTF8PROC_BOUNDCLASS_LV || b == UTF8PROC_BOUNDCLASS_LVT;
    if (a == UTF8PROC_BOUNDCLASS_LV || a == UTF8PROC_BOUNDCLASS_V)
        return b == UTF8PROC_BOUNDCLASS_V || b == UTF8PROC_BOUNDCLASS_T;
    return (a == UTF8PROC_BOUNDCLASS_LVT || a == UTF8PROC_BOUNDCLASS_T) &&
           b == UTF8PROC_BOUNDCLASS_T;
}

static bool is_control(int c)
{
    return c == UTF8PROC_BOUNDCLASS_CR || c == UTF8PROC_BOUNDCLASS_LF ||
           c == UTF8PROC_BOUNDCLASS_CONTROL;
}

/* Whether a code point of class c belongs to the cluster so far. */
static bool joins(const state *s, int c, uint32_t cp)
{
    if (s->last == UTF8PROC_BOUNDCLASS_CR && c == UTF8PROC_BOUNDCLASS_LF)
        return true;
    if (is_control(s->last) || is_control(c))
        return false;
    if (hangul_joins(s->last, c) || c == UTF8PROC_BOUNDCLASS_EXTEND ||
        c == UTF8PROC_BOUNDCLASS_ZWJ || c == UTF8PROC_BOUNDCLASS_SPACINGMARK ||
        s->last == UTF8PROC_BOUNDCLASS_PREPEND)
        return true;
    if (s->linker && FMI_IN(indic_consonant, cp))
        return true;
    if (s->pict_zwj && c == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC)
        return true;
    return s->regional && c == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR;
}

static void step(state *s, int c, uint32_t cp)
{
    bool extend = c == UTF8PROC_BOUNDCLASS_EXTEND, zwj = c == UTF8PROC_BOUNDCLASS_ZWJ;

    s->pict_zwj = s->pict && zwj;
    s->pict = c == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC || (s->pict && extend);
    s->regional = c == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR && !s->regional;
    if (FMI_IN(indic_consonant, cp)) {
        s->consonant = true;
        s->linker = false;
    } else {
        s->consonant = s->consonant && (extend || zwj) && cp != 0x200c;
        s->linker = s->consonant && (s->linker || FMI_IN(indic_linker, cp));
    }
    s->last = c;
}

size_t fmi_grapheme_next(fm_span text)
{
    state s = {UTF8PROC_BOUNDCLASS_START, false, false, false, false, false};
    uint32_t cp;
    size_t n = fm_utf8_next(text.data, &cp);

    step(&s, class_of(cp), cp);
    while (n < text.len) {
        size_t k;
        if (text.data[n] < 0x80 && text.data[n] >= 0x20 && s.last != UTF8PROC_BOUNDCLASS_PREPEND)
            break;
        k = fm_utf8_next(text.data + n, &cp);
        int c = class_of(cp);
        if (!joins(&s, c, cp))
            break;
        step(&s, c, cp);
        n += k;
    }
    return n;
}
