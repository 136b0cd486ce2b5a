/* s3_sign.c - AWS Signature Version 4, as its documentation has it: a canonical request, a string
 * to sign, a key made of the secret, the day, the region and the service. Not libcurl's own, whose
 * behaviour depends on its version, and which cannot be tested by AWS's examples. */
#include "remote/bucket/s3_sign.h"

#include <string.h>

#define BLOCK_BYTES 64u

fm_status fmr_hmac_sha256(fm_digest *out, fm_span key, fm_span text)
{
    uint8_t inner[BLOCK_BYTES] = {0}, outer[BLOCK_BYTES + FM_DIGEST_BYTES] = {0};
    fm_digest hashed;
    fm_buf all;
    if (key.len > BLOCK_BYTES) {
        FM_TRY(fm_sha256(&hashed, key.data, key.len));
        key = fm_span_of(hashed.b, sizeof hashed.b);
    }
    memcpy(inner, key.data, key.len);
    memcpy(outer, key.data, key.len);
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        inner[i] ^= 0x36;
        outer[i] ^= 0x5c;
    }
    fm_buf_init(&all, 0);
    fm_buf_append(&all, inner, sizeof inner);
    fm_buf_append(&all, text.data, text.len);
    fm_status rc = fm_buf_ok(&all);
    FM_THEN(rc, fm_sha256(&hashed, all.data, all.len));
    fm_buf_release(&all);
    FM_TRY(rc);
    memcpy(outer + BLOCK_BYTES, hashed.b, sizeof hashed.b);
    return fm_sha256(out, outer, sizeof outer);
}

static void put_names(fm_buf *out, const fmr_sign *q)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(q->header) && q->header[i].name; i++)
        fm_buf_printf(out, "%s%s", i ? ";" : "", q->header[i].name);
}

static fm_status hash_request(const fmr_sign *q, char hex[FM_HEX_CHARS + 1])
{
    fm_digest d;
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_printf(&b, "%s\n%s\n%s\n", q->method, q->path, q->query);
    for (size_t i = 0; i < FM_ARRAY_LEN(q->header) && q->header[i].name; i++)
        fm_buf_printf(&b, "%s:%s\n", q->header[i].name, q->header[i].value);
    fm_buf_char(&b, '\n');
    put_names(&b, q);
    fm_buf_printf(&b, "\n%s", q->payload);
    fm_status rc = fm_buf_ok(&b);
    FM_THEN(rc, fm_sha256(&d, b.data, b.len));
    fm_buf_release(&b);
    if (rc == FM_OK)
        fm_digest_hex(&d, hex);
    return rc;
}

static fm_status add_to_key(fm_digest *key, const char *text)
{
    const fm_digest from = *key;
    return fmr_hmac_sha256(key, fm_span_of(from.b, sizeof from.b), fm_span_str(text));
}

static fm_status key_of(const fmr_sign *q, const char *day, fm_digest *out)
{
    fm_buf secret;
    fm_buf_init(&secret, 0);
    fm_buf_printf(&secret, "AWS4%s", q->secret);
    fm_status rc = fm_buf_ok(&secret);
    FM_THEN(rc, fmr_hmac_sha256(out, fm_buf_span(&secret), fm_span_str(day)));
    if (secret.data)
        memset(secret.data, 0, secret.len);
    fm_buf_release(&secret);
    FM_THEN(rc, add_to_key(out, q->region));
    FM_THEN(rc, add_to_key(out, q->service));
    FM_THEN(rc, add_to_key(out, "aws4_request"));
    return rc;
}

fm_status fmr_sign_v4(fm_buf *out, const fmr_sign *q)
{
    char day[9] = "", request[FM_HEX_CHARS + 1], hex[FM_HEX_CHARS + 1];
    fm_digest key, signature;
    fm_buf text;
    if (strlen(q->time) != 16)
        return fm_fail(FM_EINVAL, "a signature's time is none");
    memcpy(day, q->time, 8);
    FM_TRY(hash_request(q, request));
    FM_TRY(key_of(q, day, &key));
    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", q->time, day, q->region,
                  q->service, request);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, fmr_hmac_sha256(&signature, fm_span_of(key.b, sizeof key.b), fm_buf_span(&text)));
    fm_buf_release(&text);
    FM_TRY(rc);
    fm_digest_hex(&signature, hex);
    fm_buf_printf(out,
                  "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=", q->access,
                  day, q->region, q->service);
    put_names(out, q);
    fm_buf_printf(out, ", Signature=%s", hex);
    return fm_buf_ok(out);
}
