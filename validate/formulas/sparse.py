"""The closed forms of sparse regression: Gaussian integrals by quadrature, linear flows by exponentials, laws by their densities."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

from spectral_ode import marchenko_pastur, quadrature
from spectral_ode.systems.sparse import _algorithms, _moments, _risk, _two_groups
from spectral_ode.systems.sparse.data import Law, Sample

LAW = Law(d=6, s=2, n=9, sigma=0.4)
NORMAL = Law(d=6, s=2, n=9, sigma=0.4, coefficients="normal")


def _density(r, mean, variance):
    return mp.exp(-((r - mean) ** 2) / (2 * variance)) / mp.sqrt(2 * mp.pi * variance)


def _expected(function, mean, variance, breaks=()):
    """E function(r) over r ~ N(mean, variance)."""
    root = mp.sqrt(variance)
    ends = sorted([mean + k * root for k in (-12, -4, 0, 4, 12)] + list(breaks))
    return mp.quad(lambda r: function(r) * _density(r, mean, variance), ends)


def risks():
    """An orthogonal design: the flow, shrinkage, thresholds; the window and a parabola."""
    v, tau = mp.mpf("0.09"), mp.mpf("3.5")
    for beta in (0, 1):
        flow = _expected(lambda r, beta=beta: (r * (1 - mp.exp(-(r**2) * tau)) - beta) ** 2, mp.mpf(beta), v)
        yield _risk.coordinate(jnp.asarray([3.5]), float(beta), 0.09), [flow]
    at = mp.mpf(LAW.sigma) ** 2 / LAW.n
    one = lambda beta: _expected(lambda r: (r * (1 - mp.exp(-(r**2) * tau)) - beta) ** 2, mp.mpf(beta), at)
    yield _risk.orthogonal(jnp.asarray([3.5]), LAW), [2 * one(1) + 4 * one(0)]
    shrunk = lambda rho: (1 - rho) ** 2 * 2 + rho**2 * 6 * at
    best = mp.findroot(lambda rho: mp.diff(shrunk, rho), mp.mpf("0.8"))
    yield _risk.shrinkage(LAW), shrunk(best)
    soft = lambda r, lam: mp.sign(r) * max(abs(r) - lam, 0)
    threshold = lambda beta, v, lam: _expected(lambda r: (soft(r, lam) - beta) ** 2, mp.mpf(beta), v, (-lam, lam))
    yield _risk.threshold_risk(0.7, 0.09, 0.5), threshold(mp.mpf("0.7"), v, mp.mpf("0.5"))
    lam = mp.mpf(LAW.sigma) * mp.sqrt(2 * mp.log(LAW.d) / LAW.n)
    yield _risk.lasso(LAW), 2 * threshold(1, at, lam) + 4 * threshold(0, at, lam)
    scales = [1 / mp.mpf("0.7") ** 2, 1 / ((2 + mp.mpf(LAW.sigma) ** 2) / LAW.n)]  # of (r_j)^2 on and off the support
    yield np.asarray(_risk.window(LAW, beta=0.7)), scales
    time = np.array([0.0, 1.0, 2.5, 4.0, 7.0])
    yield jnp.stack(_risk.best(jnp.asarray(time), jnp.asarray(3.0 + 0.25 * (time - 2.9) ** 2))), [2.9, 3.0]
    yield jnp.stack(_risk.best(jnp.asarray(time), jnp.asarray(3.0 + time))), [0.0, 3.0]


def _chi(x, k):
    """Density of chi^2_k."""
    return x ** (mp.mpf(k) / 2 - 1) * mp.exp(-x / 2) / (2 ** (mp.mpf(k) / 2) * mp.gamma(mp.mpf(k) / 2))


def moments():
    """E w^2, E w r^3, E r^6 over Q = chi^2_n/n and r | Q ~ N(w Q, T Q/n); for normal coefficients also over those."""
    for law in (LAW, NORMAL):
        found, share = _moments.correlations(law), mp.mpf(law.s) / law.d
        yield found.A, share * _coefficient(law, 2)
        B = share * _correlation(law, 3, 1, law.s - 1, on=True)
        C = share * _correlation(law, 6, 0, law.s - 1, on=True) + (1 - share) * _correlation(law, 6, 0, law.s, on=False)
        yield jnp.asarray([found.B, found.C, found.best]), [B, C, B / C]


def _coefficient(law, power):
    """E w^power of a non-zero coefficient."""
    return mp.mpf(1) if law.coefficients == "signs" else _expected(lambda x: x**power, mp.mpf(0), mp.mpf(1))


def _correlation(law, power, extra, count, *, on):
    """E w^extra r^power, r ~ N(w Q, T Q/n), T = sigma^2 + the squares of `count` coefficients: term by term of the powers of a normal."""
    n, sigma2 = law.n, mp.mpf(law.sigma) ** 2

    def rest(j):
        if law.coefficients == "signs":
            return (sigma2 + count) ** j
        return mp.quad(lambda x: (sigma2 + x) ** j * _chi(x, count), [0, 1, 9, mp.inf])

    total = mp.mpf(0)
    for j in range(power // 2 + 1):
        mean = _coefficient(law, power - 2 * j + extra) if on else mp.mpf(power == 2 * j)
        Q = mp.quad(lambda x, k=power - j: (x / n) ** k * _chi(x, n), [0, n, 4 * n, 20 * n, mp.inf])
        total += mp.binomial(power, 2 * j) * mp.fac2(2 * j - 1) * mean * rest(j) * Q / mp.mpf(n) ** j
    return total


def _sample():
    """One task with numbers from a formula."""
    x = np.cos(1.3 * np.arange(54).reshape(9, 6) ** 1.1)
    w = np.array([0.0, 1.2, 0.0, 0.0, -0.9, 0.0])
    return Sample(jnp.asarray(x), jnp.asarray(x @ w + 0.2 * np.sin(3.0 * np.arange(9))), jnp.asarray(w))


def _exactly(array):
    return mp.matrix(np.asarray(array).tolist())


def _integral_of_exponential(A, tau):
    """int_0^tau e^{-A s} ds, from the exponential of a block matrix."""
    size = A.rows
    block = mp.zeros(2 * size)
    for i in range(size):
        block[i, size + i] = 1
        for j in range(size):
            block[i, j] = -A[i, j]
    found = mp.expm(tau * block, method="taylor")
    return found[:size, size:]


def descent():
    """Steps and flow, preprocessed and plain, and what they are measured against."""
    sample = _sample()
    X, y = _exactly(sample.x), _exactly(sample.y)
    S, r = X.T * X / 9, X.T * y / 9
    data = sample.moments()
    yield data.S, np.array(S.tolist())
    yield data.r, np.array(r.T.tolist())[0]
    vector = lambda column: np.array(column.T.tolist())[0]
    for algorithm in _algorithms.ALGORITHMS:
        spectral = _algorithms.diagonalize(data, algorithm)
        R2 = mp.diag([r[i] ** 2 if algorithm == "pto" else 1 for i in range(6)])
        flow = _integral_of_exponential(R2 * S, mp.mpf("2.3")) * (R2 * r)  # w' = -R^2 (S w - r) from zero
        yield _algorithms.after_flow(spectral, jnp.asarray(2.3)), vector(flow)
        yield _algorithms.flow_curve(sample, algorithm, jnp.asarray([2.3])), [mp.norm(flow - _exactly(sample.w)) ** 2]
        largest = max(mp.re(value) for value in mp.eig(R2 * S, left=False, right=False))
        yield spectral.largest_step, 2 / largest
        w = mp.zeros(6, 1)
        for _ in range(7):
            w = w - mp.mpf("0.31") * (R2 * (S * w - r))
        yield _algorithms.after_steps(spectral, jnp.asarray(0.31), jnp.asarray(7)), vector(w)
        yield _algorithms.iterate(data, algorithm, jnp.asarray(0.31), 7)[-1], vector(w)
        w = mp.zeros(6, 1)
        for _ in range(3):
            w = w - R2 * (S * w - r) / largest
        yield _algorithms.step_curve(spectral, sample, 3)[-1], mp.norm(w - _exactly(sample.w)) ** 2
    yield _algorithms.ridge(data, jnp.asarray(0.2)), vector(mp.lu_solve(S + mp.mpf("0.2") * mp.eye(6), r))
    yield _algorithms.least_squares(data), vector(mp.lu_solve(S, r))
    inside = mp.matrix([[S[i, j] for j in (1, 4)] for i in (1, 4)])
    known = mp.lu_solve(inside, mp.matrix([r[1], r[4]]))
    yield _algorithms.oracle(data, jnp.asarray(sample.w != 0)), [0, known[0], 0, 0, known[1], 0]


def groups():
    """The two groups: what the support does to its labels, and one coordinate off it, integrated over its correlation."""
    sample, tau = _sample(), mp.mpf("1.7")
    block = _two_groups.block(sample, 2)
    X, y = _exactly(sample.x[:, jnp.asarray([1, 4])]), _exactly(sample.y)
    S, r = X.T * X / 9, X.T * y / 9
    R2 = mp.diag([r[0] ** 2, r[1] ** 2])
    w = _integral_of_exponential(R2 * S, tau) * (R2 * r)
    on, off = _two_groups.risks(block, jnp.asarray([1.7]), 6)
    yield on, [mp.norm(w - mp.matrix([sample.w[1].item(), sample.w[4].item()])) ** 2]
    rates, V = [mp.mpf(float(x)) for x in block.rates], [mp.mpf(float(x)) for x in block.V]
    residual = lambda t: mp.norm(y - X * (_integral_of_exponential(R2 * S, t) * (R2 * r))) ** 2 / 81
    for t in (mp.mpf(0), mp.mpf("0.9")):
        yield mp.fsum(v * mp.exp(-2 * lam * t) for v, lam in zip(V, rates, strict=True)), residual(t)
    total = mp.fsum(V)

    def square(q):  # E w_j^2 given r_j^2 = q: the response to each mode by Duhamel's integral
        phi = [q * (mp.exp(-lam * tau) - mp.exp(-q * tau)) / (q - lam) for lam in rates]
        mean = mp.fsum(p * v for p, v in zip(phi, V, strict=True)) / total
        return (q - total) * mean**2 + mp.fsum(p**2 * v for p, v in zip(phi, V, strict=True))

    yield off, [4 * _expected(lambda r: square(r**2), mp.mpf(0), total)]


def spectra():
    """Marchenko-Pastur: resolvent and risks from the density."""
    yield from _law(mp.mpf("0.4"))
    yield from _law(mp.mpf("1.7"))


def _law(gamma):
    low, high, atom = (1 - mp.sqrt(gamma)) ** 2, (1 + mp.sqrt(gamma)) ** 2, max(1 - 1 / gamma, 0)
    density = lambda s: mp.sqrt((high - s) * (s - low)) / (2 * mp.pi * gamma * s)
    over = lambda f: mp.quad(lambda s: f(s) * density(s), [low, (low + high) / 2, high])
    p, g = mp.mpf("0.3"), float(gamma)
    m, m2 = over(lambda s: 1 / (s + p)) + atom / p, over(lambda s: 1 / (s + p) ** 2) + atom / p**2
    yield jnp.stack(marchenko_pastur.resolvent(jnp.asarray(g), jnp.asarray(0.3))), [p * m, p**2 * m2]
    S, sigma2, tau = mp.mpf("1.6"), mp.mpf("0.7"), mp.mpf("2.2")
    z = gamma * sigma2 / S
    yield marchenko_pastur.bayes_risk(g, S=1.6, sigma2=0.7), S * z * (over(lambda s: 1 / (s + z)) + atom / z)
    ridge = S * p**2 * m2 + sigma2 * gamma * over(lambda s: s / (s + p) ** 2)
    yield marchenko_pastur.ridge_risk(g, 0.3, S=1.6, sigma2=0.7), ridge
    flow = S * (over(lambda s: mp.exp(-2 * s * tau)) + atom) + sigma2 * gamma * over(lambda s: (1 - mp.exp(-s * tau)) ** 2 / s)
    yield marchenko_pastur.flow_risk(jnp.asarray([2.2]), g, S=1.6, sigma2=0.7), [flow]


def nodes():
    """The rules of `quadrature` on integrals that are known, singular ends included."""
    x, weight = quadrature.interval(300)
    yield [weight.sum(), weight @ x**3, weight @ np.log(x)], [1, 0.25, -1]
    x, weight = quadrature.half_line(160)
    yield [weight @ np.exp(-x), weight @ (np.exp(-x) / np.sqrt(x)), weight @ (np.exp(-x) * x**2)], [1, math.sqrt(math.pi), 2]


def laws():
    """Powers of coefficients and of what else makes a label."""
    yield [LAW.power(4), NORMAL.power(4), NORMAL.power(6)], [1, 3, 15]
    for law in (LAW, NORMAL):
        chi = {0: 1, 1: 3, 2: 9, 3: 27} if law is LAW else {0: 1, 1: 3, 2: 15, 3: 105}  # moments of chi^2_3
        wanted = [sum(math.comb(k, j) * chi[j] * law.sigma ** (2 * (k - j)) for j in range(k + 1)) for k in range(4)]
        yield [law.square(3, k) for k in range(4)], wanted
    yield [LAW.v, LAW.W2], [0.16 / 9, 2.0]


def drawn():
    """Means over drawn tasks."""
    tasks = LAW.samples(jax.random.key(0), 20_000)
    yield float(jnp.mean(tasks.y**2)) / 2.16, 1
    residual = tasks.y - jnp.einsum("tnd,td->tn", tasks.x, tasks.w)
    yield float(jnp.mean(residual**2)) / 0.16, 1
    yield float(jnp.mean(jnp.sum(tasks.w != 0, axis=1))), 2


FORMULAS = {
    "sparse.depth": {
        "risks of an orthogonal design": (risks,),
        "steps, flows and referees": (descent, 1e-9, "eigenvalues of a 6 x 6 matrix over a thousand of them apart"),
        "two groups": (groups, 1e-6, "48 nodes for the coordinates off the support"),
        "Marchenko-Pastur law": (spectra,),
        "quadrature": (nodes, 1e-8, "a singular integrand over the half line by 160 nodes"),
    },
    "sparse.gains": {
        "moments of the correlations": (moments,),
        "powers of coefficients": (laws,),
        "drawn tasks": (drawn, 0.03, "four standard errors of 20,000 drawn tasks"),
    },
}
