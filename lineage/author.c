/* author.c - the author of a commit: as given, or from the environment or a configuration. */
#include "lineage/internal.h"

#include <stdlib.h>
#include <string.h>

/* Whether s is "Name <mail>", both without the bytes that end a field of a commit. */
static bool author_ok(const char *s)
{
    const char *lt = strchr(s, '<'), *gt = lt ? strchr(lt, '>') : NULL;

    return lt && lt >= s + 2 && lt[-1] == ' ' && gt && gt > lt + 1 && gt[1] == '\0' &&
           !strchr(lt + 1, '<') && !strchr(s, '\n') && strspn(s, " ") == 0;
}

fm_status fml_author(char **out, fm_repo *r, const char *given)
{
    const char *name = getenv("GIT_AUTHOR_NAME"), *mail = getenv("GIT_AUTHOR_EMAIL");
    char *config_name = NULL, *config_mail = NULL;
    fm_status rc = FM_OK;

    *out = NULL;
    if (given) {
        *out = fm_strdup(given);
    } else {
        if (!name || !*name)
            name = config_name = fm_repo_config(r, "user.name");
        if (!mail || !*mail)
            mail = config_mail = fm_repo_config(r, "user.email");
        *out = fm_asprintf("%s <%s>", name ? name : "fmstore", mail ? mail : "fmstore@localhost");
    }
    if (!*out) {
        rc = FM_ENOMEM;
    } else if (!author_ok(*out)) {
        rc = fm_fail(FM_EINVAL, "author '%.100s' does not read as 'Name <mail>'", *out);
        fm_free(*out);
        *out = NULL;
    }
    fm_free(config_name);
    fm_free(config_mail);
    return rc;
}
