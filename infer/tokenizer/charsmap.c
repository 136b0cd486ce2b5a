/* charsmap.c - the precompiled character map of SentencePiece models: the texts that a normalizer
 * replaces, and their replacements. The bytes are
 *
 *   u32 bytes of the array, little-endian
 *   u32 units[]             a double array (darts-clone): bit 31 a value, 30..10 offset, 9 its
 *   scale,
 *                           8 has a value below it, 7..0 label
 *   replacement texts, each ended by a 0 byte; values are offsets of them
 *
 * `tokenizers` and SentencePiece read it differently: the first looks up a whole grapheme cluster
 * shorter than 6 bytes and takes the shortest entry that begins it, then looks up single
 * characters; the second takes the longest entry at each place. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/math/hash.h"

#define MAP_MAX ((size_t)1 << 26)
#define CLUSTER_MAX 6

struct fmi_charsmap {
    uint32_t *unit;
    size_t unit_count;
    uint8_t *text;
    size_t text_len;
};

fm_status fmi_charsmap_new(fmi_charsmap **out, fm_span bytes, const char *field)
{
    fmi_charsmap *m;
    uint32_t array_bytes = 0;

    *out = NULL;
    if (bytes.len >= 4)
        array_bytes = (uint32_t)bytes.data[0] | (uint32_t)bytes.data[1] << 8 |
                      (uint32_t)bytes.data[2] << 16 | (uint32_t)bytes.data[3] << 24;
    if (bytes.len < 8 || array_bytes < 4 || array_bytes % 4 != 0 || array_bytes > bytes.len - 4)
        return fm_fail(FM_ECORRUPT, "%s: field 'precompiled_charsmap' has no valid array", field);
    m = fm_calloc(1, sizeof *m);
    if (!m)
        return FM_ENOMEM;
    m->unit_count = array_bytes / 4;
    m->text_len = bytes.len - 4 - array_bytes;
    m->unit = fm_malloc(array_bytes);
    m->text = fm_malloc(m->text_len + 1);
    if (!m->unit || !m->text) {
        fmi_charsmap_free(m);
        return FM_ENOMEM;
    }
    for (size_t i = 0; i < m->unit_count; i++) {
        const uint8_t *p = bytes.data + 4 + 4 * i;
        m->unit[i] =
            (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    memcpy(m->text, bytes.data + 4 + array_bytes, m->text_len);
    m->text[m->text_len] = 0;
    if (m->text_len > 0 && fm_utf8_valid(m->text, m->text_len) != m->text_len) {
        fmi_charsmap_free(m);
        return fm_fail(FM_ECORRUPT, "%s: field 'precompiled_charsmap': texts are not UTF-8", field);
    }
    *out = m;
    return FM_OK;
}

void fmi_charsmap_free(fmi_charsmap *m)
{
    if (!m)
        return;
    fm_free(m->unit);
    fm_free(m->text);
    fm_free(m);
}

fm_status fmi_charsmap_new_base64(fmi_charsmap **out, fm_span text, const char *field)
{
    fm_buf bytes;

    *out = NULL;
    fm_buf_init(&bytes, MAP_MAX);
    fm_status rc = fm_base64_decode(&bytes, text);
    if (rc == FM_ECORRUPT)
        rc = fm_fail(FM_ECORRUPT, "%s: field 'precompiled_charsmap' is not base64", field);
    FM_THEN(rc, fmi_charsmap_new(out, fm_buf_span(&bytes), field));
    fm_buf_release(&bytes);
    return rc;
}

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The shortest or the longest entry that begins text. A link out of a hostile array: no entry. */
static size_t find(const fmi_charsmap *m, fm_span text, bool longest, fm_span *replacement)
{
    uint32_t pos = offset_of(m->unit[0]), value = 0;
    size_t len = 0;

    for (size_t i = 0; i < text.len && text.data[i] != 0; i++) {
        pos ^= text.data[i];
        if (pos >= m->unit_count)
            break;
        uint32_t unit = m->unit[pos];
        if ((unit & (1u << 31 | 0xff)) != text.data[i])
            break;
        pos ^= offset_of(unit);
        if (!(unit & 1u << 8))
            continue;
        if (pos >= m->unit_count)
            break;
        value = m->unit[pos] & 0x7fffffff;
        len = i + 1;
        if (!longest)
            break;
    }
    if (len == 0 || value > m->text_len)
        return 0;
    *replacement = fm_span_of(m->text + value, strlen((const char *)m->text + value));
    return len;
}

size_t fmi_charsmap_longest(const fmi_charsmap *m, fm_span text, fm_span *replacement)
{
    return find(m, text, true, replacement);
}

fm_status fmi_charsmap_normalize(const fmi_charsmap *m, fm_span in, fm_buf *out)
{
    fm_span to;

    for (size_t i = 0, next = 0; i < in.len && out->failed == FM_OK;) {
        FM_TRY(fm_go_on_at(i, &next));
        fm_span cluster = fm_span_of(in.data + i, 0);
        cluster.len = fmi_grapheme_next(fm_span_of(in.data + i, in.len - i));
        i += cluster.len;
        if (cluster.len < CLUSTER_MAX && find(m, cluster, false, &to) > 0) {
            fm_buf_append(out, to.data, to.len);
            continue;
        }
        for (size_t k = 0; k < cluster.len;) {
            uint32_t cp;
            fm_span one = fm_span_of(cluster.data + k, fm_utf8_next(cluster.data + k, &cp));
            if (find(m, one, false, &to) == 0)
                to = one;
            fm_buf_append(out, to.data, to.len);
            k += one.len;
        }
    }
    return fm_buf_ok(out);
}
