/* terms.cu - low-rank terms of training, as products: those of all terms of a list at once. Bound
 * by the bytes of x, y, dy and dx, each read or written once by a product.
 *
 * Terms may share dx, to which their products are added in the order of the list: the l-th term of
 * a dx goes into the l-th launch. */
#include <new>
#include <vector>

#include "infer/cuda/exact/product.h"

typedef std::vector<fmc_task> tasks;

static void run(fmc_device *d, tasks &list)
{
    fmc_products_run(d, list.data(), (uint32_t)list.size());
    list.clear();
}

static void forward(fmc_device *d, const fm_term *list, uint32_t count)
{
    tasks down, up;
    for (const fm_term *t = list; t < list + count; t++) {
        down.push_back(fmc_task_of(t->u, t->r, fmc_rows(t->x, t->ldx, NULL),
                                   fmc_rows(t->a, t->in, NULL), t->m, t->r, t->in));
        up.push_back(fmc_task_of(t->y, t->ldy, fmc_rows(t->u, t->r, NULL),
                                 fmc_rows(t->b, t->r, NULL), t->m, t->out, t->r));
        up.back().alpha = t->scale;
        up.back().add = true;
    }
    run(d, down);
    run(d, up);
}

/* db += scale dy^T u */
static fmc_task task_db(const fm_term *t)
{
    fmc_task o = fmc_task_of(t->db, t->r, fmc_columns(t->dy, t->lddy), fmc_columns(t->u, t->r),
                             t->out, t->r, t->m);
    o.alpha = t->scale;
    o.add = true;
    return o;
}

/* du = scale dy B */
static fmc_task task_du(const fm_term *t)
{
    fmc_task o = fmc_task_of(t->du, t->r, fmc_rows(t->dy, t->lddy, NULL), fmc_columns(t->b, t->r),
                             t->m, t->r, t->out);
    o.alpha = t->scale;
    return o;
}

/* da += du^T x */
static fmc_task task_da(const fm_term *t)
{
    fmc_task o = fmc_task_of(t->da, t->in, fmc_columns(t->du, t->r), fmc_columns(t->x, t->ldx),
                             t->r, t->in, t->m);
    o.add = true;
    return o;
}

/* dx += du A */
static fmc_task task_dx(const fm_term *t)
{
    fmc_task o = fmc_task_of(t->dx, t->lddx, fmc_rows(t->du, t->r, NULL), fmc_columns(t->a, t->in),
                             t->m, t->in, t->r);
    o.add = true;
    return o;
}

/* Terms before t that add to the same dx. */
static uint32_t level_of(const fm_term *list, const fm_term *t)
{
    uint32_t level = 0;
    for (; list < t; list++)
        level += list->m > 0 && list->dx == t->dx;
    return level;
}

static void backward(fmc_device *d, const fm_term *list, uint32_t count)
{
    std::vector<tasks> step(2); /* db and du; da and the first of each dx; the second; .. */
    for (const fm_term *t = list; t < list + count; t++) {
        if (t->m == 0)
            continue;
        if (t->db)
            step[0].push_back(task_db(t));
        if (t->da || t->dx)
            step[0].push_back(task_du(t));
        if (t->da)
            step[1].push_back(task_da(t));
        if (!t->dx)
            continue;
        uint32_t at = 1 + level_of(list, t);
        if (at >= step.size())
            step.resize(at + 1);
        step[at].push_back(task_dx(t));
    }
    for (tasks &s : step)
        run(d, s);
}

void fmc_op_terms(fm_backend *be, const fm_term *list, uint32_t count)
{
    try {
        forward(fmc_of(be), list, count);
    } catch (const std::bad_alloc &) {
        fmc_stick(fmc_of(be), FM_ENOMEM, "out of memory for a list of low-rank terms");
    }
}

void fmc_op_terms_grad(fm_backend *be, const fm_term *list, uint32_t count)
{
    try {
        backward(fmc_of(be), list, count);
    } catch (const std::bad_alloc &) {
        fmc_stick(fmc_of(be), FM_ENOMEM, "out of memory for the gradient of low-rank terms");
    }
}
