/* Prints the tables of infer/tokenizer/unicode_15.c out of utf8proc 2.8, which knows Unicode 15.0:
 *
 *     cc tests/peer/unicode_15.c -lutf8proc -o /tmp/u && /tmp/u
 */
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#define LAST 0x10ffff

static unsigned column;

static void item(unsigned long value)
{
    printf("%s0x%07lx,", column % 8 ? " " : "\n    ", value);
    column++;
}

static int category(int cp)
{
    return cp <= LAST ? (int)utf8proc_category(cp) : -1;
}

static int bound(int cp)
{
    if (cp >= 0xac00 && cp <= 0xd7a3) /* LV and LVT by their place */
        return UTF8PROC_BOUNDCLASS_LV;
    return (int)utf8proc_get_property(cp)->boundclass;
}

/* How far Lu and Ll take turns from an Lu on; 0: they do not. */
static int turns(int cp)
{
    int n = 0;
    while (category(cp + n) == (n % 2 ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
        n++;
    return n >= 4 ? n : 0;
}

static void categories(void)
{
    printf("static const uint32_t categories[] = {");
    column = 0;
    for (int cp = 0; cp <= LAST;) {
        int n = turns(cp), c = category(cp);
        item((unsigned long)cp | (unsigned long)(n ? 30 : c) << 21);
        if (!n)
            while (category(cp + n) == c && !turns(cp + n))
                n++;
        cp += n;
    }
    printf("\n};\n\n");
}

static void bounds(void)
{
    printf("static const uint32_t bounds[] = {");
    column = 0;
    for (int cp = 0, last = -1; cp <= LAST; cp++)
        if (bound(cp) != last) {
            last = bound(cp);
            item((unsigned long)cp | (unsigned long)last << 21);
        }
    printf("\n};\n\n");
}

static int distance(int cp)
{
    return cp <= LAST ? utf8proc_tolower(cp) - cp : 0;
}

static void lower(void)
{
    printf("static const lower_range lower[] = {");
    column = 0;
    for (int cp = 128; cp <= LAST;) {
        int d = distance(cp), step, n = 1;
        if (!d) {
            cp++;
            continue;
        }
        step = distance(cp + 1) == d ? 1 : 2;
        while (distance(cp + n * step) == d && (step == 1 || !distance(cp + n * step - 1)))
            n++;
        printf("%s{0x%x, 0x%x, %d, %d},", column++ % 3 ? " " : "\n    ", cp, cp + (n - 1) * step, d,
               step);
        cp += (n - 1) * step + 1;
    }
    printf("\n};\n");
}

int main(void)
{
    if (strcmp(utf8proc_unicode_version(), "15.0.0") != 0) {
        fprintf(stderr, "this utf8proc knows Unicode %s\n", utf8proc_unicode_version());
        return 1;
    }
    categories();
    bounds();
    lower();
    return 0;
}
