/* open.c - opens a far side by its URL's scheme. */
#include "remote/link/open.h"

#include "remote/bucket/bucket.h"
#include "remote/link/credential.h"
#include "store/base/mem.h"

/* A server of fmstore's own, else files that any server gives. */
static fm_status open_web(fmr_far **out, const fmr_url *url, fmr_service service,
                          const fmr_open_opts *opts)
{
    fm_error_state first;
    const fm_status rc = fmr_open_http(out, url, service, opts);
    if (rc != FM_ENOTFOUND)
        return rc;
    fm_error_save(&first);
    char *ca = fmr_ca_file(url, opts ? opts->ca_file : NULL);
    const fm_status files = fmr_open_bucket_http(out, url->text, service, ca);
    fm_free(ca);
    if (files == FM_ENOTFOUND || files == FM_EIO) /* there is no bucket either */
        fm_error_restore(&first);
    return files;
}

fm_status fmr_open(fmr_far **out, const fmr_url *url, fmr_service service,
                   const fmr_open_opts *opts)
{
    *out = NULL;
    switch (url->scheme) {
    case FMR_FOLDER:
        return fmr_is_bucket(url->path) ? fmr_open_bucket_folder(out, url->path, service)
                                        : fmr_open_folder(out, url, service);
    case FMR_SSH:
        return fmr_open_ssh(out, url, service, opts);
    case FMR_HTTP:
        return open_web(out, url, service, opts);
    case FMR_S3:
        return fmr_open_bucket_s3(out, url->host, url->path, service);
    case FMR_GIT: /* remote/githost: with the bucket of its tensors */
        break;
    }
    return fm_fail(FM_EUNSUPPORTED, "%s: remotes of this kind cannot be reached yet", url->text);
}
