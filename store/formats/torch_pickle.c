/* torch_pickle.c - see torch_pickle.h. */
#include "store/formats/torch_pickle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/text/json.h"
#include "store/base/text/utf8.h"

/* ---- the names that a pickle may speak ---- */

typedef enum name_kind {
    NAME_REBUILD,
    NAME_PARAMETER,
    NAME_DICT,
    NAME_SIZE,
    NAME_DEVICE,
    NAME_STORAGE,
    NAME_DTYPE
} name_kind;

typedef struct known_name {
    const char *module, *name;
    name_kind kind;
    fm_dtype dtype;
    int version; /* version of _rebuild_tensor */
} known_name;

static const known_name known[] = {
    {"torch._utils", "_rebuild_tensor_v2", NAME_REBUILD, FM_DTYPE_NONE, 2},
    {"torch._utils", "_rebuild_tensor_v3", NAME_REBUILD, FM_DTYPE_NONE, 3},
    {"torch._utils", "_rebuild_tensor", NAME_REBUILD, FM_DTYPE_NONE, 1},
    {"torch._utils", "_rebuild_parameter", NAME_PARAMETER, FM_DTYPE_NONE, 0},
    {"collections", "OrderedDict", NAME_DICT, FM_DTYPE_NONE, 0},
    {"torch", "Size", NAME_SIZE, FM_DTYPE_NONE, 0},
    {"torch", "device", NAME_DEVICE, FM_DTYPE_NONE, 0},
    {"torch", "DoubleStorage", NAME_STORAGE, FM_F64, 0},
    {"torch", "FloatStorage", NAME_STORAGE, FM_F32, 0},
    {"torch", "HalfStorage", NAME_STORAGE, FM_F16, 0},
    {"torch", "BFloat16Storage", NAME_STORAGE, FM_BF16, 0},
    {"torch", "LongStorage", NAME_STORAGE, FM_I64, 0},
    {"torch", "IntStorage", NAME_STORAGE, FM_I32, 0},
    {"torch", "ShortStorage", NAME_STORAGE, FM_I16, 0},
    {"torch", "CharStorage", NAME_STORAGE, FM_I8, 0},
    {"torch", "ByteStorage", NAME_STORAGE, FM_U8, 0},
    {"torch", "BoolStorage", NAME_STORAGE, FM_BOOL, 0},
    {"torch.storage", "UntypedStorage", NAME_STORAGE, FM_DTYPE_NONE, 0},
    {"torch", "UntypedStorage", NAME_STORAGE, FM_DTYPE_NONE, 0},
    {"torch", "float64", NAME_DTYPE, FM_F64, 0},
    {"torch", "float32", NAME_DTYPE, FM_F32, 0},
    {"torch", "float16", NAME_DTYPE, FM_F16, 0},
    {"torch", "bfloat16", NAME_DTYPE, FM_BF16, 0},
    {"torch", "float8_e4m3fn", NAME_DTYPE, FM_F8_E4M3, 0},
    {"torch", "float8_e5m2", NAME_DTYPE, FM_F8_E5M2, 0},
    {"torch", "int64", NAME_DTYPE, FM_I64, 0},
    {"torch", "int32", NAME_DTYPE, FM_I32, 0},
    {"torch", "int16", NAME_DTYPE, FM_I16, 0},
    {"torch", "int8", NAME_DTYPE, FM_I8, 0},
    {"torch", "uint64", NAME_DTYPE, FM_U64, 0},
    {"torch", "uint32", NAME_DTYPE, FM_U32, 0},
    {"torch", "uint16", NAME_DTYPE, FM_U16, 0},
    {"torch", "uint8", NAME_DTYPE, FM_U8, 0},
    {"torch", "bool", NAME_DTYPE, FM_BOOL, 0},
};

typedef struct machine {
    fm_cursor in;
    fm_arena *arena;
    const char *what;
    tp_value **stack;
    size_t depth, stack_cap;
    size_t *mark; /* depths of the stack */
    size_t marks, mark_cap;
    tp_value **memo;
    size_t memo_count, memo_cap;
    size_t values;
    const tp_storage *storages; /* the last one named; ->next leads to the first */
    bool stopped;
} machine;

/* ---- errors ---- */

static fm_status bad(const machine *m, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: pickle: %s at byte %zu", m->what, why, m->in.pos);
}

/* Copies an untrusted name in a form that a terminal may show. */
static void printable(char out[128], fm_span name)
{
    size_t n = FM_MIN(name.len, (size_t)127);

    for (size_t i = 0; i < n; i++)
        out[i] = name.data[i] > 0x20 && name.data[i] < 0x7f ? (char)name.data[i] : '?';
    out[n] = '\0';
}

static fm_status refuse_name(const machine *m, fm_span module, fm_span name)
{
    char a[128], b[128];

    printable(a, module);
    printable(b, name);
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: its pickle asks for '%s.%s', which is not on the list of what weights "
                   "need; nothing was executed. If you trust the file, load it with PyTorch and "
                   "save the weights as safetensors",
                   m->what, a, b);
}

/* ---- values, stack, memo ---- */

static tp_value *new_value(machine *m, tp_kind kind)
{
    tp_value *v;

    if (m->values >= TP_MAX_VALUES) {
        fm_fail(FM_ELIMIT, "%s: pickle: more than %u values", m->what, TP_MAX_VALUES);
        return NULL;
    }
    m->values++;
    v = fm_arena_alloc(m->arena, sizeof *v);
    if (v)
        v->kind = kind;
    return v;
}

/* The status behind a NULL from new_value. */
static fm_status no_value(const machine *m)
{
    return m->values >= TP_MAX_VALUES ? FM_ELIMIT : FM_ENOMEM;
}

static fm_status push(machine *m, tp_value *v)
{
    if (!v)
        return no_value(m);
    if (m->depth == TP_MAX_STACK)
        return fm_fail(FM_ELIMIT, "%s: pickle: more than %u values on the stack", m->what,
                       TP_MAX_STACK);
    FM_TRY(fm_grow(&m->stack, &m->stack_cap, m->depth + 1, sizeof *m->stack));
    m->stack[m->depth++] = v;
    return FM_OK;
}

static fm_status push_int(machine *m, int64_t i)
{
    tp_value *v = new_value(m, TP_INT);

    if (v)
        v->u.i = i;
    return push(m, v);
}

static bool is_utf8(fm_span s)
{
    return s.len == 0 || (!memchr(s.data, 0, s.len) && fm_utf8_valid(s.data, s.len) == s.len);
}

static fm_status push_text(machine *m, tp_kind kind, uint64_t len)
{
    fm_span text = fm_cursor_bytes(&m->in, len);
    tp_value *v;

    if (m->in.failed)
        return bad(m, "a text reaches past the end");
    if (kind == TP_TEXT && len > TP_MAX_TEXT_BYTES)
        return fm_fail(FM_ELIMIT, "%s: pickle: a text of more than %u bytes", m->what,
                       TP_MAX_TEXT_BYTES);
    v = new_value(m, kind);
    if (v && kind == TP_TEXT) {
        v->u.text = text;
        v->utf8 = is_utf8(text);
    }
    return push(m, v);
}

/* Takes the top of the stack above the last mark; NULL: there is none. */
static tp_value *pop(machine *m)
{
    const size_t floor = m->marks > 0 ? m->mark[m->marks - 1] : 0;

    return m->depth > floor ? m->stack[--m->depth] : NULL;
}

static tp_value *top(const machine *m)
{
    const size_t floor = m->marks > 0 ? m->mark[m->marks - 1] : 0;

    return m->depth > floor ? m->stack[m->depth - 1] : NULL;
}

static fm_status add_item(machine *m, tp_value *to, tp_value *key, tp_value *value)
{
    tp_item *item;

    if (m->values >= TP_MAX_VALUES)
        return fm_fail(FM_ELIMIT, "%s: pickle: more than %u values", m->what, TP_MAX_VALUES);
    m->values++;
    item = fm_arena_alloc(m->arena, sizeof *item);
    if (!item)
        return FM_ENOMEM;
    item->key = key;
    item->value = value;
    if (to->u.list.last)
        to->u.list.last->next = item;
    else
        to->u.list.first = item;
    to->u.list.last = item;
    to->count++;
    return FM_OK;
}

/* The last n values of the stack become one tuple. */
static fm_status make_tuple(machine *m, size_t n)
{
    const size_t floor = m->marks > 0 ? m->mark[m->marks - 1] : 0;
    tp_value *t;

    if (m->depth - floor < n)
        return bad(m, "a tuple of values that are not there");
    t = new_value(m, TP_TUPLE);
    for (size_t i = m->depth - n; t && i < m->depth; i++)
        FM_TRY(add_item(m, t, NULL, m->stack[i]));
    m->depth -= n;
    return push(m, t);
}

/* *begin: the depth of the last mark, which is removed. */
static fm_status pop_mark(machine *m, size_t *begin)
{
    if (m->marks == 0)
        return bad(m, "no mark is set");
    *begin = m->mark[--m->marks];
    return FM_OK;
}

static fm_status put_memo(machine *m, uint64_t at)
{
    tp_value *v = top(m);

    if (!v)
        return bad(m, "nothing to remember");
    if (at >= m->in.len) /* a memo entry takes two bytes at least, so a larger number is invalid */
        return fm_fail(FM_ELIMIT, "%s: pickle: memo number %" PRIu64, m->what, at);
    FM_TRY(fm_grow(&m->memo, &m->memo_cap, (size_t)at + 1, sizeof *m->memo));
    for (; m->memo_count <= at; m->memo_count++)
        m->memo[m->memo_count] = NULL;
    m->memo[at] = v;
    return FM_OK;
}

static fm_status get_memo(machine *m, uint64_t at)
{
    if (at >= m->memo_count || !m->memo[at])
        return bad(m, "asks for what was not remembered");
    return push(m, m->memo[at]);
}

/* ---- globals and what is made of them ---- */

static fm_status push_global(machine *m, fm_span module, fm_span name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (fm_span_eq_str(module, known[i].module) && fm_span_eq_str(name, known[i].name)) {
            tp_value *v = new_value(m, TP_GLOBAL);
            if (v)
                v->u.global = &known[i];
            return push(m, v);
        }
    return refuse_name(m, module, name);
}

static fm_span line(machine *m)
{
    const uint8_t *p = m->in.data + m->in.pos;
    const uint8_t *end = memchr(p, '\n', m->in.len - m->in.pos);
    fm_span s = {NULL, 0};

    if (end) {
        s = fm_span_of(p, (size_t)(end - p));
        m->in.pos += s.len + 1;
    }
    return s;
}

static fm_status op_global(machine *m)
{
    fm_span module = line(m), name = line(m);

    return module.data && name.data ? push_global(m, module, name)
                                    : bad(m, "a name without its end");
}

static fm_status op_stack_global(machine *m)
{
    const tp_value *name = pop(m), *module = pop(m);

    if (!name || !module || name->kind != TP_TEXT || module->kind != TP_TEXT)
        return bad(m, "a name that is no text");
    return push_global(m, module->u.text, name->u.text);
}

static bool is_a(const tp_value *v, tp_kind kind)
{
    return v && v->kind == kind;
}

static const known_name *global_of(const tp_value *v)
{
    return is_a(v, TP_GLOBAL) ? v->u.global : NULL;
}

static bool as_u64(const tp_value *v, uint64_t *out)
{
    if (!v || v->kind != TP_INT || v->u.i < 0)
        return false;
    *out = (uint64_t)v->u.i;
    return true;
}

/* A tuple (or list: old files) of at most FM_MAX_RANK integers from 0. */
static bool as_dims(const tp_value *v, uint32_t *rank, uint64_t dim[FM_MAX_RANK])
{
    uint32_t n = 0;

    if (!v || (v->kind != TP_TUPLE && v->kind != TP_LIST) || v->count > FM_MAX_RANK)
        return false;
    for (const tp_item *it = v->u.list.first; it; it = it->next)
        if (!as_u64(it->value, &dim[n++]))
            return false;
    *rank = n;
    return true;
}

static const tp_value *arg(const tp_value *args, size_t i)
{
    const tp_item *it = args->u.list.first;

    for (; it && i > 0; i--)
        it = it->next;
    return it ? it->value : NULL;
}

/* (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]) */
static fm_status rebuild(machine *m, const known_name *g, const tp_value *args)
{
    const size_t need = g->version == 1 ? 4 : g->version == 2 ? 6 : 7;
    const tp_value *storage = arg(args, 0);
    const known_name *dtype = g->version == 3 ? global_of(arg(args, 6)) : NULL;
    tp_tensor *t = fm_arena_alloc(m->arena, sizeof *t);
    tp_value *v = new_value(m, TP_TENSOR);
    uint32_t strides = 0;

    if (!t || !v)
        return t ? no_value(m) : FM_ENOMEM;
    if (args->count < need || args->count > need + (g->version > 1))
        return bad(m, "a tensor with a wrong number of arguments");
    if (!is_a(storage, TP_STORAGE))
        return bad(m, "a tensor without a storage");
    t->storage = storage->u.storage;
    t->dtype = dtype ? dtype->dtype : t->storage->dtype;
    if (g->version == 3 && (!dtype || dtype->kind != NAME_DTYPE))
        return bad(m, "a tensor without a dtype");
    if (t->dtype == FM_DTYPE_NONE ||
        (t->storage->dtype != FM_DTYPE_NONE && t->dtype != t->storage->dtype))
        return bad(m, "a tensor whose dtype is not its storage's");
    if (!as_u64(arg(args, 1), &t->offset))
        return bad(m, "a tensor whose offset is no integer from 0");
    if (!as_dims(arg(args, 2), &t->shape.rank, t->shape.dim))
        return bad(m, "a tensor whose size is no tuple of at most 8 integers from 0");
    if (!as_dims(arg(args, 3), &strides, t->stride) || strides != t->shape.rank)
        return bad(m, "a tensor whose strides do not match its size");
    v->u.tensor = t;
    return push(m, v);
}

static fm_status op_reduce(machine *m)
{
    tp_value *args = pop(m);
    const known_name *g = global_of(pop(m));

    if (!args || args->kind != TP_TUPLE || !g)
        return bad(m, "a call of what is no name on the list");
    switch (g->kind) {
    case NAME_REBUILD:
        return rebuild(m, g, args);
    case NAME_PARAMETER:
        if (args->count != 3 || !is_a(arg(args, 0), TP_TENSOR))
            return bad(m, "a parameter that holds no tensor");
        return push(m, args->u.list.first->value);
    case NAME_DICT:
        if (args->count != 0)
            return bad(m, "an OrderedDict with arguments");
        return push(m, new_value(m, TP_DICT));
    case NAME_SIZE:
        if (args->count != 1 || !is_a(arg(args, 0), TP_TUPLE))
            return bad(m, "a torch.Size of something that is no tuple");
        return push(m, args->u.list.first->value);
    case NAME_DEVICE:
        return push(m, new_value(m, TP_OTHER));
    case NAME_STORAGE:
    case NAME_DTYPE:
        break;
    }
    return fm_fail(FM_EUNSUPPORTED, "%s: its pickle calls '%s.%s', which is no function of weights",
                   m->what, g->module, g->name);
}

/* ('storage', class, key, location, elements[, None]) */
static fm_status op_persid(machine *m)
{
    const tp_value *id = pop(m);
    const tp_value *tag, *key;
    const known_name *g;
    tp_storage *s = fm_arena_alloc(m->arena, sizeof *s);
    tp_value *v = new_value(m, TP_STORAGE);

    if (!s || !v)
        return s ? no_value(m) : FM_ENOMEM;
    if (!id || id->kind != TP_TUPLE || id->count < 5 || id->count > 6)
        return bad(m, "a persistent id that is no storage");
    tag = arg(id, 0);
    g = global_of(arg(id, 1));
    key = arg(id, 2);
    if (!is_a(tag, TP_TEXT) || !fm_span_eq_str(tag->u.text, "storage") || !g ||
        g->kind != NAME_STORAGE || !is_a(key, TP_TEXT) || !as_u64(arg(id, 4), &s->elems))
        return bad(m, "a persistent id that is no storage");
    if (id->count == 6 && !is_a(arg(id, 5), TP_OTHER))
        return bad(m, "a view of a storage");
    s->key = key->u.text;
    if (s->key.len == 0 || s->key.len > TP_MAX_KEY_BYTES)
        return bad(m, "a storage whose key is no short name");
    s->dtype = g->dtype;
    s->next = m->storages;
    m->storages = s;
    v->u.storage = s;
    return push(m, v);
}

/* The attributes of an OrderedDict (_metadata of a state_dict): the source's bytes keep them. */
static fm_status op_build(machine *m)
{
    const tp_value *state = pop(m), *on = top(m);

    if (!state || !on || on->kind != TP_DICT || state->kind != TP_DICT)
        return bad(m, "sets the state of what is no dictionary");
    return FM_OK;
}

/* ---- opcodes ---- */

static fm_status op_proto(machine *m)
{
    return fm_cursor_u8(&m->in) <= 5
               ? FM_OK
               : fm_fail(FM_EUNSUPPORTED, "%s: pickle: a protocol after 5", m->what);
}

static fm_status op_frame(machine *m)
{
    return fm_cursor_u64(&m->in) <= fm_cursor_left(&m->in) ? FM_OK : bad(m, "a frame past the end");
}

static fm_status op_mark(machine *m)
{
    FM_TRY(fm_grow(&m->mark, &m->mark_cap, m->marks + 1, sizeof *m->mark));

    m->mark[m->marks++] = m->depth;
    return FM_OK;
}

static fm_status op_stop(machine *m)
{
    m->stopped = true;
    if (m->marks != 0 || m->depth != 1)
        return bad(m, "ends with other than one value");
    return FM_OK;
}

static fm_status op_bool(machine *m, bool b)
{
    tp_value *v = new_value(m, TP_BOOL);

    if (v)
        v->u.i = b;
    return push(m, v);
}

static fm_status op_float(machine *m)
{
    fm_cursor_skip(&m->in, 8);
    return push(m, new_value(m, TP_OTHER));
}

/* Reads a little-endian two's complement of n bytes; one of more than 8 becomes TP_OTHER. */
static fm_status op_long(machine *m, uint64_t n)
{
    fm_span s = fm_cursor_bytes(&m->in, n);
    uint64_t v = 0;

    if (m->in.failed)
        return bad(m, "an integer reaches past the end");
    if (n > 8)
        return push(m, new_value(m, TP_OTHER));
    for (size_t i = 0; i < s.len; i++)
        v |= (uint64_t)s.data[i] << (8 * i);
    if (s.len > 0 && s.len < 8 && s.data[s.len - 1] & 0x80)
        v |= ~(uint64_t)0 << (8 * s.len);
    return push_int(m, (int64_t)v);
}

static fm_status op_tuple(machine *m)
{
    size_t begin = 0;
    FM_TRY(pop_mark(m, &begin));

    return make_tuple(m, m->depth - begin);
}

static fm_status op_append(machine *m)
{
    tp_value *v = pop(m), *to = top(m);

    if (!v || !to || to->kind != TP_LIST)
        return bad(m, "appends to what is no list");
    return add_item(m, to, NULL, v);
}

static fm_status op_appends(machine *m)
{
    size_t begin = 0, end = m->depth;
    FM_TRY(pop_mark(m, &begin));
    tp_value *to;

    m->depth = begin;
    to = top(m);
    if (!to || to->kind != TP_LIST)
        return bad(m, "appends to what is no list");
    for (size_t i = begin; i < end; i++)
        FM_TRY(add_item(m, to, NULL, m->stack[i]));
    return FM_OK;
}

static fm_status op_setitem(machine *m)
{
    tp_value *v = pop(m), *k = pop(m), *to = top(m);

    if (!v || !k || !to || to->kind != TP_DICT)
        return bad(m, "sets an item of what is no dictionary");
    return add_item(m, to, k, v);
}

static fm_status op_setitems(machine *m)
{
    size_t begin = 0, end = m->depth;
    FM_TRY(pop_mark(m, &begin));
    tp_value *to;

    m->depth = begin;
    to = top(m);
    if (!to || to->kind != TP_DICT || (end - begin) % 2 != 0)
        return bad(m, "sets items of what is no dictionary");
    for (size_t i = begin; i < end; i += 2)
        FM_TRY(add_item(m, to, m->stack[i], m->stack[i + 1]));
    return FM_OK;
}

static fm_status refuse_opcode(const machine *m, uint8_t op)
{
    static const struct {
        uint8_t op;
        const char *name;
    } word[] = {{'i', "INST"},        {'o', "OBJ"},          {0x81, "NEWOBJ"},
                {0x92, "NEWOBJ_EX"},  {'P', "PERSID"},       {0x82, "EXT1"},
                {0x83, "EXT2"},       {0x84, "EXT4"},        {'2', "DUP"},
                {'0', "POP"},         {'1', "POP_MARK"},     {'I', "INT"},
                {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
                {'V', "UNICODE"},     {'S', "STRING"},       {0x91, "FROZENSET"}};
    const char *name = "?";

    for (size_t i = 0; i < FM_ARRAY_LEN(word); i++)
        if (word[i].op == op)
            name = word[i].name;
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: its pickle uses opcode 0x%02x (%s) at byte %zu, which weights do not need; "
                   "nothing was executed. If you trust the file, load it with PyTorch and save the "
                   "weights as safetensors",
                   m->what, (unsigned)op, name, m->in.pos - 1);
}

static fm_status step_text(machine *m, uint8_t op)
{
    switch (op) {
    case 'X': /* BINUNICODE */
        return push_text(m, TP_TEXT, fm_cursor_u32(&m->in));
    case 0x8c: /* SHORT_BINUNICODE */
    case 'U':  /* SHORT_BINSTRING: Python 2 */
        return push_text(m, TP_TEXT, fm_cursor_u8(&m->in));
    case 'T': /* BINSTRING */
        return push_text(m, TP_TEXT, fm_cursor_u32(&m->in));
    case 'B': /* BINBYTES */
        return push_text(m, TP_OTHER, fm_cursor_u32(&m->in));
    case 'C': /* SHORT_BINBYTES */
        return push_text(m, TP_OTHER, fm_cursor_u8(&m->in));
    default:
        return refuse_opcode(m, op);
    }
}

static fm_status step_scalar(machine *m, uint8_t op)
{
    switch (op) {
    case 'N': /* NONE */
        return push(m, new_value(m, TP_OTHER));
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */
        return op_bool(m, op == 0x88);
    case 'J': /* BININT */
        return push_int(m, (int32_t)fm_cursor_u32(&m->in));
    case 'K': /* BININT1 */
        return push_int(m, fm_cursor_u8(&m->in));
    case 'M': /* BININT2 */
        return push_int(m, fm_cursor_u16(&m->in));
    case 0x8a: /* LONG1 */
        return op_long(m, fm_cursor_u8(&m->in));
    case 0x8b: /* LONG4 */
        return op_long(m, fm_cursor_u32(&m->in));
    case 'G': /* BINFLOAT */
        return op_float(m);
    default:
        return step_text(m, op);
    }
}

static fm_status step_container(machine *m, uint8_t op)
{
    switch (op) {
    case '}': /* EMPTY_DICT */
        return push(m, new_value(m, TP_DICT));
    case ']': /* EMPTY_LIST */
        return push(m, new_value(m, TP_LIST));
    case ')': /* EMPTY_TUPLE */
        return make_tuple(m, 0);
    case 't': /* TUPLE */
        return op_tuple(m);
    case 0x85: /* TUPLE1 */
    case 0x86:
    case 0x87:
        return make_tuple(m, (size_t)op - 0x84);
    case 'a': /* APPEND */
        return op_append(m);
    case 'e': /* APPENDS */
        return op_appends(m);
    case 's': /* SETITEM */
        return op_setitem(m);
    case 'u': /* SETITEMS */
        return op_setitems(m);
    default:
        return step_scalar(m, op);
    }
}

static fm_status step(machine *m)
{
    const uint8_t op = fm_cursor_u8(&m->in);

    switch (op) {
    case 0x80: /* PROTO */
        return op_proto(m);
    case 0x95: /* FRAME */
        return op_frame(m);
    case '(': /* MARK */
        return op_mark(m);
    case '.': /* STOP */
        return op_stop(m);
    case 'q': /* BINPUT */
        return put_memo(m, fm_cursor_u8(&m->in));
    case 'r': /* LONG_BINPUT */
        return put_memo(m, fm_cursor_u32(&m->in));
    case 0x94: /* MEMOIZE */
        return put_memo(m, m->memo_count);
    case 'h': /* BINGET */
        return get_memo(m, fm_cursor_u8(&m->in));
    case 'j': /* LONG_BINGET */
        return get_memo(m, fm_cursor_u32(&m->in));
    case 'c': /* GLOBAL */
        return op_global(m);
    case 0x93: /* STACK_GLOBAL */
        return op_stack_global(m);
    case 'R': /* REDUCE */
        return op_reduce(m);
    case 'b': /* BUILD */
        return op_build(m);
    case 'Q': /* BINPERSID */
        return op_persid(m);
    default:
        return step_container(m, op);
    }
}

static fm_status run(machine *m)
{
    if (m->in.len < 2 || m->in.data[0] != 0x80)
        return bad(m, "is no pickle of protocol 2 or later");
    while (!m->stopped) {
        if (fm_cursor_left(&m->in) == 0)
            return bad(m, "ends without its end mark");
        FM_TRY(fm_go_on());
        FM_TRY(step(m));
        if (m->in.failed)
            FM_TRY(bad(m, "ends in the middle of an opcode"));
    }
    return FM_OK;
}

fm_status tp_load_next(tp_value **out, fm_arena *arena, fm_span bytes, const char *what,
                       size_t *used, const tp_storage **storages)
{
    machine m = {.arena = arena, .what = what};
    fm_status rc;

    *out = NULL;
    fm_cursor_init(&m.in, fm_span_of(bytes.data, FM_MIN(bytes.len, TP_MAX_PICKLE_BYTES)));
    rc = run(&m);
    if (rc == FM_OK)
        *out = m.stack[0];
    if (used)
        *used = m.in.pos;
    if (storages)
        *storages = m.storages;
    fm_free(m.stack);
    fm_free(m.mark);
    fm_free(m.memo);
    return rc;
}

fm_status tp_load(tp_value **out, fm_arena *arena, fm_span pkl, const char *what)
{
    size_t used = 0;

    *out = NULL;
    if (pkl.len > TP_MAX_PICKLE_BYTES)
        return fm_fail(FM_ELIMIT, "%s: a pickle of %zu bytes; at most %zu", what, pkl.len,
                       TP_MAX_PICKLE_BYTES);
    FM_TRY(tp_load_next(out, arena, pkl, what, &used, NULL));
    if (used != pkl.len)
        return fm_fail(FM_ECORRUPT, "%s: pickle: goes on behind its end at byte %zu", what, used);
    return FM_OK;
}
