/* repo.c - makes, finds and opens a repository on disk.
 *
 * `config` is written last, so a folder with a config is a whole repository and an init that was
 * killed can be run again. Its format number is read before anything else is touched. */
#include "lineage/internal.h"
#include "store/gc/room.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOT_DIR ".fmstore"

static pthread_once_t git_once = PTHREAD_ONCE_INIT;
static int git_started;

/* Never shut down: handles of several threads share libgit2's globals. Owner validation is off
 * because a store of models is commonly read by users who do not own it, and fmstore runs no
 * hook. */
static void git_start(void)
{
    git_started = git_libgit2_init();
    if (git_started >= 0) {
        git_libgit2_opts(GIT_OPT_ENABLE_FSYNC_GITDIR, 1);
        git_libgit2_opts(GIT_OPT_SET_OWNER_VALIDATION, 0);
    }
}

static fm_status start(void)
{
    pthread_once(&git_once, git_start);
    return git_started < 0 ? fm_fail(FM_ENOMEM, "libgit2 does not start") : FM_OK;
}

/* ---- init ---- */

/* HEAD names main until a first branch has another name; every ref keeps a reflog, by which
 * name@{1} and a lost branch are found; plain `git log` shows fmstore's notes. */
static fm_status init_git(const char *git_path)
{
    static const char *const setting[][2] = {
        {"core.logallrefupdates", "always"},
        {"notes.displayref", FML_NOTES_REF "*"}, /* '*': git warns of a plain name of no ref */
    };
    git_repository_init_options opts;
    git_repository *git = NULL;
    git_config *config = NULL;
    fm_status rc = FM_OK;
    int code;

    (void)git_repository_init_options_init(&opts, GIT_REPOSITORY_INIT_OPTIONS_VERSION);
    opts.flags = GIT_REPOSITORY_INIT_BARE | GIT_REPOSITORY_INIT_MKPATH;
    opts.initial_head = "main";
    opts.description = "models of an fmstore repository; `git log --graph --stat` reads them\n";
    code = git_repository_init_ext(&git, git_path, &opts);
    if (code == 0)
        code = git_repository_config(&config, git);
    for (size_t i = 0; code == 0 && i < FM_ARRAY_LEN(setting); i++)
        code = git_config_set_string(config, setting[i][0], setting[i][1]);
    if (code < 0)
        rc = fml_git_fail(code, "cannot make '%s'", git_path);
    git_config_free(config);
    git_repository_free(git);
    /* libgit2 fsyncs few of the files that it makes here, and a later commit fsyncs only its own:
     * without this call a power failure could lose objects/pack with all packs in it. */
    return rc == FM_OK ? fm_fsync_tree(git_path) : rc;
}

static fm_status make_sub(const char *root, const char *name)
{
    char *path = fm_path_join(root, name);
    fm_status rc = path ? fm_make_dirs(path) : FM_ENOMEM;

    fm_free(path);
    return rc;
}

static fm_status write_config(const char *root)
{
    static const char text[] = "# fmstore repository (git config syntax)\n"
                               "[fmstore]\n\tformat = 1\n";
    char *path = fm_path_join(root, "config");
    fm_status rc = path ? fm_write_file(path, text, sizeof text - 1) : FM_ENOMEM;

    fm_free(path);
    return rc == FM_OK ? fm_fsync_dir(root) : rc;
}

static fm_status init_at(const char *root)
{
    static const char *const sub[] = {"packs", "tmp", "cache"};
    char *config = fm_path_join(root, "config"), *git_path = fm_path_join(root, "lineage.git");
    fm_status rc = config && git_path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && fm_path_exists(config))
        rc =
            fm_fail(FM_EEXISTS, "'%s' already holds a repository (or another 'config' file)", root);
    FM_THEN(rc, fm_make_dirs(root));
    if (rc == FM_OK) {
        rc = fm_store_init(root);
        if (rc == FM_EEXISTS) /* an earlier init was killed before its config */
            rc = FM_OK;
    }
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(sub); i++)
        rc = make_sub(root, sub[i]);
    FM_THEN(rc, init_git(git_path));
    FM_THEN(rc, fm_fsync_dir(root));
    FM_THEN(rc, write_config(root));
    if (rc == FM_OK)
        fms_room_reserve(root, FMS_ROOM_BYTES);
    fm_free(config);
    fm_free(git_path);
    return rc;
}

fm_status fm_repo_init(const char *dir, bool bare)
{
    char *root = NULL;
    FM_TRY(start());
    if (!dir || !*dir)
        return fm_fail(FM_EINVAL, "init: no folder was named");
    root = bare ? fm_strdup(dir) : fm_path_join(dir, DOT_DIR);
    fm_status rc = root ? init_at(root) : FM_ENOMEM;
    fm_free(root);
    return rc;
}

/* ---- open ---- */

static fm_status is_repo(bool *yes, const char *root)
{
    char *config = fm_path_join(root, "config"), *git_path = fm_path_join(root, "lineage.git");
    fm_status rc = config && git_path ? FM_OK : FM_ENOMEM;

    *yes = rc == FM_OK && fm_path_exists(config) && fm_path_is_dir(git_path);
    fm_free(config);
    fm_free(git_path);
    return rc;
}

/* *out: folder itself, or its .fmstore; NULL if neither is a repository. */
static fm_status root_at(char **out, const char *folder)
{
    char *dot = fm_path_join(folder, DOT_DIR);
    bool yes = false;
    fm_status rc = dot ? is_repo(&yes, folder) : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK && yes) {
        *out = fm_strdup(folder);
        rc = *out ? FM_OK : FM_ENOMEM;
    } else if (rc == FM_OK) {
        rc = is_repo(&yes, dot);
        if (yes) {
            *out = dot;
            return FM_OK;
        }
    }
    fm_free(dot);
    return rc;
}

fm_status fm_repo_is(const char *dir, bool *yes)
{
    char *root = NULL;
    fm_status rc = root_at(&root, dir);
    *yes = root != NULL;
    fm_free(root);
    return rc;
}

/* Tries dir and dir/.fmstore, then the same for each folder above. */
static fm_status find_root(char **out, const char *dir)
{
    char full[PATH_MAX];

    *out = NULL;
    if (!realpath(dir, full))
        return fm_fail(FM_ENOTFOUND, "'%s' is no folder", dir);
    for (;;) {
        fm_status rc = root_at(out, full);
        char *slash = strrchr(full, '/');
        if (rc < 0 || *out)
            return rc;
        if (!slash || full[1] == '\0')
            break;
        slash[slash == full ? 1 : 0] = '\0';
    }
    return fm_fail(FM_ENOTFOUND,
                   "no fmstore repository in '%s' or a folder above it; 'fmstore init' makes one",
                   dir);
}

static fm_status check_format(const char *root)
{
    char *path = fm_path_join(root, "config");
    git_config *config = NULL;
    int64_t format = 0;
    fm_status rc = FM_OK;
    int code;

    if (!path)
        return FM_ENOMEM;
    code = git_config_open_ondisk(&config, path);
    if (code == 0)
        code = git_config_get_int64(&format, config, "fmstore.format");
    if (code < 0)
        rc = fml_damage(code, "%s: cannot read fmstore.format", path);
    else if (format > FML_FORMAT)
        rc =
            fm_fail(FM_EVERSION,
                    "%s: repository format %" PRId64 ", this fmstore knows %d; use a newer fmstore",
                    root, format, FML_FORMAT);
    else if (format < 1)
        rc = fm_fail(FM_ECORRUPT, "%s: fmstore.format is %" PRId64 ", must be at least 1", path,
                     format);
    git_config_free(config);
    fm_free(path);
    return rc;
}

/* Sets the identity that libgit2 writes into reflogs. */
static fm_status set_ident(fm_repo *r)
{
    char *author = NULL, *mail, *end;
    FM_TRY(fml_author(&author, r, NULL));
    int code;

    mail = strchr(author, '<');
    end = mail ? strchr(mail, '>') : NULL;
    fm_assert(mail && end && mail > author); /* fml_author checked it */
    *end = '\0';
    mail[-1] = '\0';
    code = git_repository_set_ident(r->git, author, mail + 1);
    fm_free(author);
    return code < 0 ? fml_git_fail(code, "cannot set the reflog's name") : FM_OK;
}

static fm_status open_git(fm_repo *r)
{
    int code = git_repository_open_bare(&r->git, r->git_path);

    if (code < 0)
        return fml_damage(code, "cannot open '%s'", r->git_path);
    FM_TRY(fml_pack_indexes_check(r));
    FM_TRY(fml_odb_setup(r));
    return set_ident(r);
}

fm_status fm_repo_open(fm_repo **out, const char *dir)
{
    fm_repo *r = NULL;
    fm_status rc = start();

    *out = NULL;
    if (rc < 0)
        return rc;
    if (!dir || !*dir)
        return fm_fail(FM_EINVAL, "open: no folder was named");
    r = fm_calloc(1, sizeof *r);
    if (!r)
        return FM_ENOMEM;
    rc = find_root(&r->path, dir);
    FM_THEN(rc, check_format(r->path));
    if (rc < 0)
        goto fail;
    r->git_path = fm_path_join(r->path, "lineage.git");
    r->lock_path = fm_path_join(r->path, "lineage.lock");
    rc = r->git_path && r->lock_path ? fm_store_open(&r->store, r->path) : FM_ENOMEM;
    FM_THEN(rc, open_git(r));
    if (rc < 0)
        goto fail;
    *out = r;
    return FM_OK;
fail:
    fm_repo_close(r);
    return rc;
}

void fm_repo_close(fm_repo *r)
{
    if (!r)
        return;
    fml_rows_close(r->rows);
    fm_map_free(r->promised);
    git_odb_free(r->odb);
    git_repository_free(r->git);
    fm_store_close(r->store);
    fm_free(r->pending);
    fm_free(r->path);
    fm_free(r->git_path);
    fm_free(r->lock_path);
    fm_free(r);
}

fm_store *fm_repo_store(fm_repo *r)
{
    return r->store;
}

const char *fm_repo_path(const fm_repo *r)
{
    return r->path;
}
