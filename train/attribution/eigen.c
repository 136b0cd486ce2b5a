/* eigen.c - eigenvectors of small symmetric matrices in double, one thread, fixed
 * order. */
#include "train/attribution/walk.h"

#include <float.h>
#include <math.h>

enum { ROUNDS = 64 };

/* m [n, n] becomes H m, H = 1 - 2 v v^T / length, for v from element `first` on and columns from
 * `from` on; t [n] is working memory. */
static void from_left(double *m, const double *v, double length, double *t, size_t n, size_t first,
                      size_t from)
{
    for (size_t c = from; c < n; c++)
        t[c] = 0.0;
    for (size_t i = first; i < n; i++)
        for (size_t c = from; c < n; c++)
            t[c] += v[i] * m[i * n + c];
    for (size_t i = first; i < n; i++) {
        double f = 2.0 * v[i] / length;
        for (size_t c = from; c < n; c++)
            m[i * n + c] -= f * t[c];
    }
}

/* Clears row k of a behind its neighbour by a reflection, which is applied from both sides to the
 * part below and collected in qt, whose rows become the eigenvectors. */
static void reflect(double *a, double *qt, double *v, double *t, size_t n, size_t k)
{
    double norm = 0.0;
    double rest = 0.0;

    for (size_t i = k + 1; i < n; i++) {
        v[i] = a[k * n + i];
        norm += v[i] * v[i];
        rest += i > k + 1 ? fabs(v[i]) : 0.0;
    }
    if (rest <= 0.0)
        return;
    double head = v[k + 1];
    v[k + 1] += head < 0.0 ? -sqrt(norm) : sqrt(norm);
    double length = norm - head * head + v[k + 1] * v[k + 1];
    from_left(a, v, length, t, n, k + 1, k);
    for (size_t r = k; r < n; r++) {
        double sum = 0.0;
        for (size_t i = k + 1; i < n; i++)
            sum += a[r * n + i] * v[i];
        sum *= 2.0 / length;
        for (size_t i = k + 1; i < n; i++)
            a[r * n + i] -= sum * v[i];
    }
    from_left(qt, v, length, t, n, k + 1, 0);
}

static void turn_rows(double *qt, size_t n, size_t i, double c, double s)
{
    double *x = qt + i * n;
    double *y = x + n;

    for (size_t k = 0; k < n; k++) {
        double old = x[k];
        x[k] = c * old + s * y[k];
        y[k] = c * y[k] - s * old;
    }
}

/* One implicit QR sweep of the tridiagonal block lo .. hi: diagonal d, off-diagonal e[i] at (i, i +
 * 1); Wilkinson's shift. Rotations of neighbours chase the bulge. */
static void sweep(double *d, double *e, double *qt, size_t n, size_t lo, size_t hi)
{
    double half = (d[hi - 1] - d[hi]) / 2.0;
    double root = hypot(half, e[hi - 1]);
    double shift = d[hi] - e[hi - 1] * e[hi - 1] / (half + (half < 0.0 ? -root : root));
    double x = d[lo] - shift;
    double z = e[lo];

    for (size_t k = lo; k < hi; k++) {
        double r = hypot(x, z);
        double c = r > 0.0 ? x / r : 1.0;
        double s = r > 0.0 ? z / r : 0.0;
        double a = d[k];
        double b = d[k + 1];
        double f = e[k];
        if (k > lo)
            e[k - 1] = r;
        d[k] = c * c * a + 2.0 * c * s * f + s * s * b;
        d[k + 1] = s * s * a - 2.0 * c * s * f + c * c * b;
        e[k] = c * s * (b - a) + (c * c - s * s) * f;
        x = e[k];
        if (k + 1 < hi) {
            z = s * e[k + 1];
            e[k + 1] *= c;
        }
        turn_rows(qt, n, k, c, s);
    }
}

static void sort_ascending(double *d, double *qt, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        size_t least = i;
        for (size_t k = i + 1; k < n; k++)
            least = d[k] < d[least] ? k : least;
        if (least == i)
            continue;
        double t = d[i];
        d[i] = d[least];
        d[least] = t;
        for (size_t c = 0; c < n; c++) {
            t = qt[i * n + c];
            qt[i * n + c] = qt[least * n + c];
            qt[least * n + c] = t;
        }
    }
}

fm_status fmt_eigen(double *a, double *qt, double *d, double *work, size_t n)
{
    double *e = work;

    for (size_t i = 0; i < n * n; i++)
        qt[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
    for (size_t k = 0; k + 2 < n; k++)
        reflect(a, qt, e, work + n, n, k);
    double most = 0.0;
    for (size_t i = 0; i < n; i++) {
        d[i] = a[i * n + i];
        e[i] = i + 1 < n ? a[i * n + i + 1] : 0.0;
        most = fmax(most, fmax(fabs(d[i]), fabs(e[i])));
    }
    size_t hi = n > 0 ? n - 1 : 0;
    for (size_t round = 0; hi > 0;) {
        size_t lo = hi;
        for (size_t i = 0; i < hi; i++)
            if (fabs(e[i]) <= DBL_EPSILON * most)
                e[i] = 0.0;
        while (lo > 0 && fabs(e[lo - 1]) > 0.0)
            lo--;
        if (lo == hi) {
            hi--;
            round = 0;
            continue;
        }
        if (++round > ROUNDS)
            return fm_fail(FM_EINVAL, "eigenvalues of a %zu x %zu matrix do not settle", n, n);
        sweep(d, e, qt, n, lo, hi);
    }
    sort_ascending(d, qt, n);
    return FM_OK;
}
