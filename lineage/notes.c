/* notes.c - lines of text on a commit, as git notes (`git log` shows refs/notes/fmstore).
 *
 * git_note_create would move the ref before the objects are durable, so the objects are written
 * here one by one. A tree that plain git has fanned out (aa/bbcc...) is followed, never made. */
#include "lineage/internal.h"

#include <string.h>

#define MAX_NOTE_BYTES (64u << 10)
#define MAX_LINE_BYTES 4096u

static fm_status read_note(fm_repo *r, const git_oid *commit, fm_buf *out)
{
    git_note *note = NULL;
    int code = git_note_read(&note, r->git, FML_NOTES_REF, commit);

    if (code == GIT_ENOTFOUND)
        return fm_fail(FM_ENOTFOUND, "the version has no note");
    if (code < 0)
        return fml_damage(code, "cannot read a note");
    fm_buf_str(out, git_note_message(note));
    git_note_free(note);
    return fm_buf_ok(out);
}

fm_status fm_note_read(fm_repo *r, fm_buf *out, const fm_oid *commit)
{
    git_oid id;

    if (!r || !commit)
        return fm_fail(FM_EINVAL, "note: a repository and a version are needed");
    id = fml_git_oid(commit);
    return read_note(r, &id, out);
}

/* Makes the tree of base (NULL: empty) with name -> blob added; follows a fan-out. */
static fm_status put_in(fm_repo *r, const git_tree *base, const char *name, const git_oid *blob,
                        git_oid *out)
{
    char head[3] = {name[0], name[1], '\0'};
    const git_tree_entry *e = base ? git_tree_entry_byname(base, head) : NULL;
    git_treebuilder *b = NULL;
    git_tree *sub = NULL;
    git_oid id = *blob;
    bool fanned = e && git_tree_entry_type(e) == GIT_OBJECT_TREE && strlen(name) > 2;
    fm_status rc = FM_OK;
    int code = git_treebuilder_new(&b, r->git, base);

    if (code == 0 && fanned) {
        code = git_tree_lookup(&sub, r->git, git_tree_entry_id(e));
        if (code == 0)
            rc = put_in(r, sub, name + 2, blob, &id);
        git_tree_free(sub);
    }
    if (code == 0 && rc == FM_OK)
        code = git_treebuilder_insert(NULL, b, fanned ? head : name, &id,
                                      fanned ? GIT_FILEMODE_TREE : GIT_FILEMODE_BLOB);
    if (code == 0 && rc == FM_OK)
        code = git_treebuilder_write(out, b);
    git_treebuilder_free(b);
    if (code < 0)
        return fml_git_fail(code, "cannot write a note's tree");
    return rc == FM_OK ? fml_object_note(r, out) : rc;
}

static fm_status base_tree(fm_repo *r, const git_oid *at, git_tree **out)
{
    git_commit *c = NULL;
    int code = git_commit_lookup(&c, r->git, at);

    if (code == 0)
        code = git_commit_tree(out, c);
    git_commit_free(c);
    return code < 0 ? fml_damage(code, FML_NOTES_REF " cannot be read") : FM_OK;
}

static fm_status write_note(fm_repo *r, const git_oid *commit, fm_span text)
{
    git_oid at, to, blob;
    git_tree *base = NULL;
    bool exists = false;
    char name[41] = "";
    fml_commit c = {.message = "notes: a line more\n"};
    fm_status rc = fml_ref_peek(r, &at, &exists, FML_NOTES_REF);

    git_oid_fmt(name, commit);
    if (rc == FM_OK && exists)
        rc = base_tree(r, &at, &base);
    FM_THEN(rc, fml_object_put(r, &blob, GIT_OBJECT_BLOB, text));
    FM_THEN(rc, put_in(r, base, name, &blob, &c.tree));
    git_tree_free(base);
    FM_THEN(rc, fml_commit_clock(&c.author_time));
    c.commit_time = c.author_time;
    c.parent = &at;
    c.parent_count = exists ? 1 : 0;
    FM_THEN(rc, fml_commit_put(r, &to, &c));
    FM_THEN(rc, fml_objects_write(r));
    FM_THEN(rc, fml_ref_move(r, FML_NOTES_REF, &to, exists ? &at : NULL, "note"));
    return rc;
}

static bool has_line(const fm_buf *text, const char *line)
{
    size_t n = strlen(line);

    for (const char *l = fm_buf_cstr(text); *l;) {
        size_t len = strcspn(l, "\n");
        if (len == n && memcmp(l, line, n) == 0)
            return true;
        l += len + (l[len] == '\n');
    }
    return false;
}

static fm_status add_locked(fm_repo *r, const git_oid *commit, const char *line)
{
    fm_buf text;
    fm_status rc;

    fm_buf_init(&text, MAX_NOTE_BYTES);
    rc = read_note(r, commit, &text);
    if (rc == FM_ENOTFOUND)
        rc = FM_OK;
    if (rc == FM_OK && !has_line(&text, line)) {
        if (text.len > 0 && text.data[text.len - 1] != '\n')
            fm_buf_char(&text, '\n');
        fm_buf_printf(&text, "%s\n", line);
        rc = fm_buf_ok(&text);
        FM_THEN(rc, write_note(r, commit, fm_buf_span(&text)));
    }
    fm_buf_release(&text);
    return rc;
}

fm_status fm_note_add(fm_repo *r, const fm_oid *commit, const char *line)
{
    fm_lock *lock = NULL;
    git_oid id;
    char hex[41];
    fm_status rc;

    if (!r || !commit || !line || !*line || strpbrk(line, "\r\n"))
        return fm_fail(FM_EINVAL, "note: a version and one line of text are needed");
    if (strlen(line) > MAX_LINE_BYTES)
        return fm_fail(FM_ELIMIT, "note: %zu bytes, at most %u", strlen(line), MAX_LINE_BYTES);
    id = fml_git_oid(commit);
    if (!fml_is_commit(r, &id)) {
        fm_oid_hex(commit, hex);
        return fm_fail(FM_ENOTFOUND, "note: no version %s", hex);
    }
    rc = fml_ref_lock(r, &lock);
    FM_THEN(rc, add_locked(r, &id, line));
    fml_objects_abort(r);
    fm_lock_drop(lock);
    return rc;
}
