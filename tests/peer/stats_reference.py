#!/usr/bin/env python3
"""Writes tests/unit/testing/stats_cases.json: what SciPy, statsmodels and NumPy say of the statistics that
testing/stats.h offers, for the unit test that compares without Python.

    VENV/bin/pip install scipy statsmodels && VENV/bin/python tests/peer/stats_reference.py

Where neither library has a function it is written here from its definition and summed by brute
force over exact binomial masses. The bootstrap draws the same cases as ours: Philox4x32-10 is
written out again below in NumPy, so that its intervals must agree to rounding, not to chance."""
import json
import math
import pathlib

import numpy as np
import scipy
import scipy.stats as S
import statsmodels
from scipy import optimize, special
from statsmodels.stats import multitest, proportion
from statsmodels.stats.contingency_tables import mcnemar

cases = []


def record(name, args, out, tol=1e-10):
    out = [float(v) for v in np.atleast_1d(np.asarray(out, dtype=float))]
    # NaN and infinities as words: JSON has no numbers for them.
    out = ["nan" if math.isnan(v) else ("inf" if v > 0 else "-inf") if math.isinf(v) else v for v in out]
    cases.append({"f": name, "in": args, "out": out, "tol": tol})


def philox(seed, stream, index):
    """Philox4x32-10 (Salmon et al. 2011): counter words index, stream; key words seed."""
    index = np.asarray(index, dtype=np.uint64)
    m32 = np.uint64(0xFFFFFFFF)
    c = [index & m32, index >> np.uint64(32), np.full_like(index, stream & 0xFFFFFFFF),
         np.full_like(index, stream >> 32)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), b & m32,
             (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), a & m32]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def draws(n, seed, resample):
    """Case numbers of one resample: the high half of a 64-bit word times n."""
    w = philox(seed, resample, np.arange((n + 1) // 2))
    words = np.empty(2 * len(w[0]), dtype=object)
    words[0::2] = [int(l) | int(h) << 32 for l, h in zip(w[0], w[1])]
    words[1::2] = [int(l) | int(h) << 32 for l, h in zip(w[2], w[3])]
    return np.array([int(v) * n >> 64 for v in words[:n]])


def bootstrap(statistic, n, resamples, seed, confidence, bca):
    value = statistic(np.arange(n))
    stat = np.array([statistic(draws(n, seed, r)) for r in range(resamples)])
    tail = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if bca:
        z0 = S.norm.ppf((np.mean(stat < value) + np.mean(stat <= value)) / 2)
        left = np.array([statistic(np.delete(np.arange(n), i)) for i in range(n)])
        d = left.mean() - left
        a = (d**3).sum() / (6 * (d**2).sum() ** 1.5)
        z = z0 + S.norm.ppf(tail)
        tail = S.norm.cdf(z0 + z / (1 - a * z))
    return [value, *np.quantile(stat, tail)]


def special_functions():
    for x in (1e-3, 0.3, 1, 1.5, 2, 7.25, 15.9, 16, 100.5, 1e5):
        record("log_gamma", [x], special.gammaln(x), 1e-11)
    for a, b in ((0.5, 0.5), (1, 1), (2, 30), (17, 4), (300.5, 900), (50000, 50001), (1, 100000)):
        for x in (1e-9, 0.01, a / (a + b), 0.5, 0.9, 0.999999):
            record("beta_cdf", [x, a, b], S.beta.cdf(x, a, b))
        for p in (1e-6, 0.025, 0.5, 0.8, 0.975):
            record("beta_quantile", [p, a, b], special.betaincinv(a, b, p), 1e-9)
    for z in (-30, -8, -3.1, -3, -2.9, -1, 0, 1e-9, 0.5, 2.99, 3.01, 6):
        record("normal_cdf", [z], S.norm.cdf(z))
    for p in (0, 1e-12, 0.025, 0.5, 0.8, 0.975, 1 - 1e-9, 1):
        record("normal_quantile", [p], S.norm.ppf(p))
    for n, p in ((1, 0.3), (10, 0.5), (10, 0), (10, 1), (1000, 0.999), (100000, 0.5), (100000, 1e-5)):
        for k in sorted({-1, 0, int(n * p), int(n * p) + 1, n, n + 1}):
            record("binom_pmf", [k, n, p], S.binom.pmf(k, n, p))
            record("binom_cdf", [k, n, p], S.binom.cdf(k, n, p))
            record("binom_sf", [k, n, p], S.binom.sf(k - 1, n, p))
    for args in ((0, 10, 4, 3), (2, 10, 4, 3), (4, 10, 4, 3), (50, 1000, 100, 500), (3, 3, 3, 3)):
        record("hypergeom_pmf", list(args), S.hypergeom.pmf(args[0], args[1], args[2], args[3]))


def rates():
    for k, n in ((0, 1), (1, 1), (0, 10), (3, 10), (10, 10), (39, 40), (800, 1000), (99999, 100000)):
        for conf in (0.8, 0.95, 0.999):
            t = S.binomtest(k, n)
            record("wilson", [k, n, conf], t.proportion_ci(conf, "wilson"))
    for k1, n1, k2, n2 in ((3, 10, 9, 12), (56, 70, 48, 80), (9, 10, 3, 10), (1, 40, 0, 40), (400, 500, 430, 500)):
        diff = proportion.confint_proportions_2indep(k2, n2, k1, n1, compare="diff", method="newcomb")
        record("rate_difference", [k1, n1, k2, n2, 0.95], [k2 / n2 - k1 / n1, *diff])
        if k2:
            ratio = koopman(k1, n1, k2, n2)
            theirs = proportion.confint_proportions_2indep(k2, n2, k1, n1, compare="ratio", method="score",
                                                           correction=False)
            assert np.allclose(ratio, theirs, rtol=1e-5), (ratio, theirs)
            record("rate_ratio", [k1, n1, k2, n2, 0.95], [(k2 / n2) / (k1 / n1), *ratio])
    record("rate_ratio", [0, 5, 0, 7, 0.95], ["nan", 0, "inf"])


def koopman(k1, n1, k2, n2):
    """statsmodels' score interval of a ratio, its roots to the last bits."""
    def z2(ratio):
        s = proportion.test_proportions_2indep(k2, n2, k1, n1, value=ratio, compare="ratio", method="score",
                                               correction=False)
        return s.statistic
    z, at = S.norm.ppf(0.975), (k2 / n2) / (k1 / n1)
    return [optimize.brentq(lambda r: z2(r) - z, at * 1e-4, at, xtol=1e-15, rtol=1e-14),
            optimize.brentq(lambda r: z2(r) + z, at, at * 1e4, xtol=1e-13, rtol=1e-14)]


def newcombe_paired(fixed, broken, both, neither):
    """Newcombe 1998, method 10, in the terms of the paper: e..h, then theta of the first less the
    second column, turned round at the end."""
    n = fixed + broken + both + neither
    e, f, g, h = both, broken, fixed, neither
    l2, u2 = S.binomtest(e + f, n).proportion_ci(0.95, "wilson")
    l3, u3 = S.binomtest(e + g, n).proportion_ci(0.95, "wilson")
    p2, p3 = (e + f) / n, (e + g) / n
    A = (e + f) * (g + h) * (e + g) * (f + h)
    B = e * h - f * g
    C = B - n / 2 if B > n / 2 else 0 if B >= 0 else B
    phi = 0 if A == 0 else C / math.sqrt(A)
    theta = p2 - p3
    low = theta - math.sqrt((p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u3 - p3) + (u3 - p3) ** 2)
    high = theta + math.sqrt((p3 - l3) ** 2 - 2 * phi * (p3 - l3) * (u2 - p2) + (u2 - p2) ** 2)
    return [-theta, -high, -low]


def paired():
    # Newcombe's own table 1, data set 'd' (36, 12, 2, 0) gives 0.2000: 0.0569, 0.3404.
    check = newcombe_paired(2, 12, 36, 0)
    assert np.allclose([-check[0], -check[2], -check[1]], [0.2, 0.0569, 0.3404], atol=6e-5), check
    for b, c in ((0, 0), (1, 0), (6, 0), (5, 1), (10, 10), (3, 17), (400, 480), (2000, 1500)):
        p = mcnemar([[0, b], [c, 0]], exact=True).pvalue if b + c else 1
        record("mcnemar", [b, c], p)
    for t in ((2, 12, 36, 0), (0, 0, 40, 0), (1, 5, 30, 4), (10, 2, 50, 38), (0, 3, 37, 0), (5, 5, 0, 10)):
        record("paired_difference", [*t, 0.95], newcombe_paired(*t))
    for x in ([1.0, -2.0, 3.0, 0.5], [1, 1, 1, 1, 1, -1], [0.1, 0.2, 0.3, -0.6, 0], [1.0] * 10 + [-1.0] * 3 + [0] * 5):
        p = S.permutation_test((np.array(x),), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
        record("permutation_paired", list(map(float, x)), p)


def many():
    for p in ([0.01], [0.01, 0.04, 0.03, 0.005], [0.2, 0.2, 0.9, 0.001, 1.0], [0.5] * 4):
        record("holm", p, multitest.multipletests(p, method="holm")[1])
        record("bh", p, S.false_discovery_control(p, method="bh"))


def resampling():
    rng = np.random.default_rng(3)
    x = rng.choice([-1.0, 0.0, 1.0], 60, p=[0.15, 0.8, 0.05])
    y = np.round(rng.exponential(1, 41), 3)
    for data, seed in ((x, 5), (y, 2**40 + 3)):
        for bca in (False, True):
            out = bootstrap(lambda i: data[i].mean(), len(data), 500, seed, 0.9, bca)
            record("bootstrap_mean_bca" if bca else "bootstrap_mean", [500, seed, 0.9, *map(float, data)], out)
            far = S.bootstrap((data,), np.mean, n_resamples=50000, confidence_level=0.9, rng=rng,
                              method="BCa" if bca else "percentile").confidence_interval
            width = far.high - far.low  # 500 resamples find a limit to a fifth of the width or so
            assert abs(far.low - out[1]) < 0.2 * width and abs(far.high - out[2]) < 0.2 * width, (far, out)
    conf = np.round(rng.uniform(0, 1, 50), 9)  # no ties: a tie is decided by rounding
    conf[:3] = [0, 1, 0.5]
    right = rng.uniform(size=50) < conf**1.5

    def ece(i, bins=10):
        at = np.clip(np.ceil(conf[i] * bins).astype(int) - 1, 0, bins - 1)
        return sum(abs(right[i][at == b].astype(float).mean() - conf[i][at == b].mean()) * (at == b).sum()
                   for b in range(bins) if (at == b).any()) / len(i)

    flat = [v for pair in zip(map(float, conf), map(int, right)) for v in pair]
    record("ece", [10, 400, 7, *flat], bootstrap(ece, 50, 400, 7, 0.95, True))


def power():
    def drop(n, rate, alpha, want):
        reject = [k for k in range(n + 1) if S.binom.cdf(k, n, rate) <= alpha]
        if not reject:
            return math.nan
        return rate - optimize.brentq(lambda q: S.binom.cdf(reject[-1], n, q) - want, 0, 1, xtol=1e-14)

    def mcnemar_power(n, fixed, broken, alpha):
        total = 0.0
        for d in range(n + 1):
            x = np.arange(d // 2 + 1, d + 1)
            seen = x[2 * S.binom.sf(x - 1, d, 0.5) <= alpha]
            total += S.binom.pmf(d, n, fixed + broken) * S.binom.pmf(seen, d, broken / (fixed + broken)).sum()
        return total

    for n, rate in ((5, 0.5), (3, 0.3), (20, 0.9), (100, 0.95), (400, 1.0)):
        record("detectable_drop", [n, rate, 0.05, 0.8], drop(n, rate, 0.05, 0.8), 1e-9)
    for n, f, b in ((10, 0, 0.6), (40, 0.02, 0.2), (200, 0.05, 0.1), (150, 0.3, 0.1)):
        record("mcnemar_power", [n, f, b, 0.05], mcnemar_power(n, f, b, 0.05), 1e-9)
    for n, churn in ((4, 0), (10, 0), (60, 0.1), (150, 0.02)):
        top = 1 - churn
        if n < 6:
            record("detectable_flips", [n, churn, 0.05, 0.8], math.nan)
            continue
        d = optimize.brentq(lambda d: mcnemar_power(n, churn / 2, churn / 2 + d, 0.05) - 0.8, 1e-9, top, xtol=1e-12)
        record("detectable_flips", [n, churn, 0.05, 0.8], d, 1e-7)


def sequential():
    """Prior over posterior of every possible number of passes, by brute force."""
    for n, k, total, threshold in ((20, 20, 200, 0.8), (60, 57, 200, 0.8), (60, 40, 200, 0.8), (30, 24, 100, 0.8),
                                   (90, 85, 100, 0.9), (10, 0, 50, 0.5), (45, 30, 50, 0.6)):
        passes = np.arange(total + 1)
        seen = S.hypergeom.pmf(k, total, passes, n)
        with np.errstate(divide="ignore"):
            e = np.where(seen > 0, (1 / (total + 1)) / (seen / seen.sum()), np.inf)
        need = math.ceil(threshold * total - 1e-9)
        left = passes[e < 20]
        decision = 1 if e[:need].min() >= 20 else 2 if e[need:].min() >= 20 else 0
        record("sequential", [n, k, total, threshold, 0.05], [decision, left[0] / total, left[-1] / total])
    for n, k, threshold in ((10, 10, 0.9), (60, 60, 0.9), (60, 40, 0.9), (500, 450, 0.9)):
        e = lambda r: 1 / max((n + 1) * S.binom.pmf(k, n, r), 1e-300) - 20
        low = optimize.brentq(e, 1e-12, k / n, xtol=1e-14)
        high = 1 if k == n else optimize.brentq(e, k / n, 1 - 1e-12, xtol=1e-14)
        decision = (1 if k / n >= threshold else 2) if e(threshold) >= 0 else 0
        record("sequential", [n, k, 0, threshold, 0.05], [decision, low, high], 1e-9)


for part in (special_functions, rates, paired, many, resampling, power, sequential):
    part()
out = pathlib.Path(__file__).resolve().parents[1] / "unit" / "testing" / "stats_cases.json"
head = {"made_by": "tests/peer/stats_reference.py",
        "with": f"scipy {scipy.__version__}, statsmodels {statsmodels.__version__}, numpy {np.__version__}"}
with open(out, "w") as f:
    f.write("{" + json.dumps(head)[1:-1] + ', "cases": [\n')
    f.write(",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
print(len(cases), "cases")
