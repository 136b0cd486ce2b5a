/* certificates.c - keeps libgit2 from reading the system's certificates at each start.
 *
 * Debian's libgit2 reads the file of all certificates in git_libgit2_init, which took a third of
 * the time of a short command, and has no option against it. This function of mbedTLS stands
 * before the library's own for every library of this program: it reads nothing, so no certificate
 * is trusted. What fmstore opens by TLS goes through libcurl (remote/http), which has OpenSSL or
 * GnuTLS; a command by which libgit2 opens one must give this file up. It is part of the program
 * alone: a program that links fm_ops may need certificates. */
int mbedtls_x509_crt_parse_file(void *chain, const char *path);

__attribute__((weak)) int mbedtls_x509_crt_parse_file(void *chain, const char *path)
{
    (void)chain;
    (void)path;
    return 0;
}
