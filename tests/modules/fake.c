/* fake.c - device modules that have no device, for tests of how they are opened. FAKE says which: a
 * sound one with two GPUs (FAKE_CARDS of the environment: another number, -1: no driver), or one of
 * another version. */
#define FM_MODULE_BUILD
#include "infer/device/module.h"

#include <stdio.h>
#include <stdlib.h>

static const fm_module_host *host;

static fm_status count(uint32_t *out)
{
    const char *cards = getenv("FAKE_CARDS");
    long n = cards ? strtol(cards, NULL, 10) : 2;
    *out = n > 0 ? (uint32_t)n : 0;
    return n < 0 ? host->fail(FM_EUNSUPPORTED, "fake: no driver is installed") : FM_OK;
}

static fm_status describe(char *text, size_t cap, uint32_t device)
{
    (void)snprintf(text, cap, "fake card %u", device);
    return FM_OK;
}

static fm_status open_device(fm_backend **out, uint32_t device, const char *mode, fm_pool *pool)
{
    char text[64];
    (void)pool;
    *out = NULL;
    (void)snprintf(text, sizeof text, "fake: asked for card %u in mode %s", device, mode);
    return host->fail(FM_EIO, text);
}

const fm_module *fm_module_get(const fm_module_host *h)
{
    static const fm_module module = {FM_MODULE_ABI + FAKE, "fake", count, describe, open_device,
                                     NULL};
    host = h;
    return &module;
}
