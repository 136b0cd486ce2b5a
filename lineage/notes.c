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

/* ---- two clones' notes as one ---- */

#define NAME_CHARS 40u

typedef struct notes {
    fm_repo *r;
    fm_map *at; /* name -> 1 + its number */
    struct note {
        char name[NAME_CHARS + 1];
        git_oid blob;
    } * note;
    size_t count, cap;
} notes;

static bool has_span(const fm_buf *text, fm_span line)
{
    fm_span rest = fm_buf_span(text);

    while (rest.len > 0) {
        const uint8_t *end = memchr(rest.data, '\n', rest.len);
        const size_t len = (size_t)(end - rest.data); /* each line here has its end */
        if (len == line.len && memcmp(rest.data, line.data, len) == 0)
            return true;
        rest = fm_span_of(end + 1, rest.len - len - 1);
    }
    return false;
}

static void add_lines(fm_buf *text, fm_span from)
{
    while (from.len > 0 && fm_buf_ok(text) == FM_OK) {
        const uint8_t *end = memchr(from.data, '\n', from.len);
        const size_t len = end ? (size_t)(end - from.data) : from.len;
        if (!has_span(text, fm_span_of(from.data, len))) {
            fm_buf_append(text, from.data, len);
            fm_buf_char(text, '\n');
        }
        from = fm_span_of(from.data + len + (end != NULL), from.len - len - (end != NULL));
    }
}

static fm_status read_blob(const notes *n, const git_oid *id, fm_buf *out)
{
    git_blob *blob = NULL;
    int code = git_blob_lookup(&blob, n->r->git, id);

    if (code < 0)
        return fml_damage(code, "cannot read a note");
    fm_buf_append(out, git_blob_rawcontent(blob), (size_t)git_blob_rawsize(blob));
    git_blob_free(blob);
    return fm_buf_ok(out);
}

static fm_status unite(const notes *n, git_oid *a, const git_oid *b)
{
    fm_buf text[2], all;
    fm_status rc;

    fm_buf_init(&text[0], MAX_NOTE_BYTES);
    fm_buf_init(&text[1], MAX_NOTE_BYTES);
    fm_buf_init(&all, MAX_NOTE_BYTES);
    rc = read_blob(n, a, &text[0]);
    FM_THEN(rc, read_blob(n, b, &text[1]));
    if (rc == FM_OK) {
        const size_t len = FM_MIN(text[0].len, text[1].len);
        const int order = len ? memcmp(text[0].data, text[1].data, len) : 0;
        const bool first = order < 0 || (order == 0 && text[0].len <= text[1].len);
        add_lines(&all, fm_buf_span(&text[!first]));
        add_lines(&all, fm_buf_span(&text[first]));
        rc = fm_buf_ok(&all);
    }
    FM_THEN(rc, fml_object_put(n->r, a, GIT_OBJECT_BLOB, fm_buf_span(&all)));
    fm_buf_release(&text[0]);
    fm_buf_release(&text[1]);
    fm_buf_release(&all);
    return rc;
}

static fm_status take_note(notes *n, const char name[NAME_CHARS + 1], const git_oid *blob)
{
    const size_t at = (uintptr_t)fm_map_get(n->at, name, NAME_CHARS);

    if (at > 0) {
        if (git_oid_equal(&n->note[at - 1].blob, blob))
            return FM_OK;
        fm_status rc = unite(n, &n->note[at - 1].blob, blob);
        return rc < 0 ? fm_error_prefix(rc, "the note of version %.12s", name) : FM_OK;
    }
    FM_TRY(fm_grow(&n->note, &n->cap, n->count + 1, sizeof *n->note));
    memcpy(n->note[n->count].name, name, NAME_CHARS + 1);
    n->note[n->count++].blob = *blob;
    return fm_map_put(n->at, name, NAME_CHARS, (void *)(uintptr_t)n->count, NULL);
}

/* Entries that are no notes are left out. */
static fm_status take_notes(notes *n, const git_tree *tree, char name[NAME_CHARS + 1], size_t len)
{
    for (size_t i = 0; i < git_tree_entrycount(tree); i++) {
        const git_tree_entry *e = git_tree_entry_byindex(tree, i);
        const char *part = git_tree_entry_name(e);
        const size_t more = strlen(part);
        git_tree *sub = NULL;
        if (len + more > NAME_CHARS || strspn(part, "0123456789abcdef") != more)
            continue;
        memcpy(name + len, part, more + 1);
        if (git_tree_entry_type(e) == GIT_OBJECT_BLOB && len + more == NAME_CHARS) {
            FM_TRY(take_note(n, name, git_tree_entry_id(e)));
        } else if (git_tree_entry_type(e) == GIT_OBJECT_TREE && more == 2) {
            int code = git_tree_lookup(&sub, n->r->git, git_tree_entry_id(e));
            fm_status rc = code < 0 ? fml_damage(code, "cannot read notes")
                                    : take_notes(n, sub, name, len + more);
            git_tree_free(sub);
            if (rc < 0)
                return rc;
        }
    }
    return FM_OK;
}

static fm_status take_side(notes *n, const git_oid *commit, git_oid *tree_id, int64_t *time)
{
    char name[NAME_CHARS + 1] = "";
    git_commit *c = NULL;
    git_tree *tree = NULL;
    int code = git_commit_lookup(&c, n->r->git, commit);

    if (code == 0)
        code = git_commit_tree(&tree, c);
    if (code < 0) {
        git_commit_free(c);
        return fml_damage(code, "cannot read notes");
    }
    *time = FM_MAX(*time, (int64_t)git_commit_time(c));
    *tree_id = *git_tree_id(tree);
    fm_status rc = take_notes(n, tree, name, 0);
    git_tree_free(tree);
    git_commit_free(c);
    return rc;
}

static fm_status write_notes(const notes *n, git_oid *out)
{
    git_treebuilder *b = NULL;
    int code = git_treebuilder_new(&b, n->r->git, NULL);

    for (size_t i = 0; code == 0 && i < n->count; i++)
        code =
            git_treebuilder_insert(NULL, b, n->note[i].name, &n->note[i].blob, GIT_FILEMODE_BLOB);
    if (code == 0)
        code = git_treebuilder_write(out, b);
    git_treebuilder_free(b);
    return code < 0 ? fml_git_fail(code, "cannot write the tree of notes")
                    : fml_object_note(n->r, out);
}

/* Nothing of the commit depends on the side that makes it. */
static fm_status commit_notes(fm_repo *r, const git_oid *tree, git_oid parent[2], size_t parents,
                              int64_t time, git_oid *out)
{
    fml_commit c = {.tree = *tree,
                    .parent = parent,
                    .parent_count = parents,
                    .author = "fmstore <fmstore@localhost>",
                    .author_time = time,
                    .commit_time = time,
                    .message = "notes: joined with another repository's\n"};
    const git_oid first = parent[0];

    if (parents == 2 && git_oid_cmp(&parent[0], &parent[1]) > 0) {
        parent[0] = parent[1];
        parent[1] = first;
    }
    return fml_commit_put(r, out, &c);
}

static fm_status join_locked(notes *n, const git_oid *theirs)
{
    git_oid parent[2] = {*theirs, *theirs}, ours, tree, their_tree, our_tree, to = *theirs;
    int64_t time = 0;
    bool exists = false;
    FM_TRY(fml_ref_peek(n->r, &ours, &exists, FML_NOTES_REF));

    if (exists &&
        (git_oid_equal(&ours, theirs) || git_graph_descendant_of(n->r->git, &ours, theirs) == 1))
        return FM_OK;
    if (exists)
        FM_TRY(take_side(n, &ours, &our_tree, &time));
    FM_TRY(take_side(n, theirs, &their_tree, &time));
    FM_TRY(write_notes(n, &tree));
    const bool forward = !exists || git_graph_descendant_of(n->r->git, theirs, &ours) == 1;
    parent[1] = exists ? ours : *theirs;
    if (!forward || !git_oid_equal(&tree, &their_tree))
        FM_TRY(commit_notes(n->r, &tree, parent, exists ? 2 : 1, time, &to));
    FM_TRY(fml_objects_write(n->r));
    return fml_ref_move(n->r, FML_NOTES_REF, &to, exists ? &ours : NULL, "notes joined");
}

fm_status fml_notes_join(fm_repo *r, const git_oid *theirs)
{
    notes n = {.r = r};
    fm_lock *lock = NULL;
    fm_status rc = fm_map_new(&n.at);

    FM_THEN(rc, fml_ref_lock(r, &lock));
    FM_THEN(rc, join_locked(&n, theirs));
    fml_objects_abort(r);
    fm_lock_drop(lock);
    fm_map_free(n.at);
    fm_free(n.note);
    return rc;
}
