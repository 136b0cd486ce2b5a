/* attribution_eigen.c - eigenvectors of small symmetric matrices in double, one thread, fixed order.
 */
#include "train/attribution_walk.h"

#include <float.h>
#include <math.h>

enum { ROUNDS = 64 };

/* Row k of a, cleared behind its neighbour by a reflection H = 1 - 2 v v^T that is applied from both
 * sides to what lies below and collected in q. */
static void reflect(double *a, double *q, double *v, size_t n, size_t k)
{
    double norm = 0.0;
    double rest = 0.0;

    for (size_t i = k + 1; i < n; i++) {
        v[i] = a[i * n + k];
        norm += v[i] * v[i];
        rest += i > k + 1 ? fabs(v[i]) : 0.0;
    }
    if (rest <= 0.0)
        return;
    double head = v[k + 1];
    v[k + 1] += head < 0.0 ? -sqrt(norm) : sqrt(norm);
    double length = norm - head * head + v[k + 1] * v[k + 1];
    for (size_t r = k; r < n; r++) { /* from the right */
        double s = 0.0;
        for (size_t i = k + 1; i < n; i++)
            s += a[r * n + i] * v[i];
        for (size_t i = k + 1; i < n; i++)
            a[r * n + i] -= 2.0 * s / length * v[i];
    }
    for (size_t c = k; c < n; c++) { /* from the left */
        double s = 0.0;
        for (size_t i = k + 1; i < n; i++)
            s += a[i * n + c] * v[i];
        for (size_t i = k + 1; i < n; i++)
            a[i * n + c] -= 2.0 * s / length * v[i];
    }
    for (size_t r = 0; r < n; r++) {
        double s = 0.0;
        for (size_t i = k + 1; i < n; i++)
            s += q[r * n + i] * v[i];
        for (size_t i = k + 1; i < n; i++)
            q[r * n + i] -= 2.0 * s / length * v[i];
    }
}

static void turn_columns(double *q, size_t n, size_t i, double c, double s)
{
    for (size_t r = 0; r < n; r++) {
        double x = q[r * n + i];
        double y = q[r * n + i + 1];
        q[r * n + i] = c * x + s * y;
        q[r * n + i + 1] = c * y - s * x;
    }
}

/* One implicit QR sweep of the tridiagonal block lo .. hi: diagonal d, beside it e[i] at (i, i + 1);
 * Wilkinson's shift. The bulge is chased by rotations of neighbours. */
static void sweep(double *d, double *e, double *q, size_t n, size_t lo, size_t hi)
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
        turn_columns(q, n, k, c, s);
    }
}

static void sort_ascending(double *d, double *q, size_t n)
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
        for (size_t r = 0; r < n; r++) {
            t = q[r * n + i];
            q[r * n + i] = q[r * n + least];
            q[r * n + least] = t;
        }
    }
}

fm_status fmi_eigen(double *a, double *q, double *d, double *e, size_t n)
{
    for (size_t i = 0; i < n * n; i++)
        q[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
    for (size_t k = 0; k + 2 < n; k++)
        reflect(a, q, e, n, k);
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
        sweep(d, e, q, n, lo, hi);
    }
    sort_ascending(d, q, n);
    return FM_OK;
}
