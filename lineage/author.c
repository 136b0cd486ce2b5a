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

/* Reads REPO/config, then git's files (lineage.git/config, the user's, the system's). */
char *fm_repo_config(fm_repo *r, const char *key)
{
    char *path = fm_path_join(r->path, "config"), *out = NULL;
    git_config *ours = NULL, *theirs = NULL;
    git_buf value = GIT_BUF_INIT;
    int code = path ? git_config_open_ondisk(&ours, path) : -1;

    if (code == 0)
        code = git_config_get_string_buf(&value, ours, key);
    if (code < 0 && git_repository_config(&theirs, r->git) == 0)
        code = git_config_get_string_buf(&value, theirs, key);
    if (code == 0 && value.size > 0)
        out = fm_strndup(value.ptr, value.size);
    git_buf_dispose(&value);
    git_config_free(ours);
    git_config_free(theirs);
    fm_free(path);
    return out;
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
