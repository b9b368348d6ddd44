r"""Softmax averages at finite L (arXiv:2402.19442) by sums of their own, and how full weights are seen as a spectrum.

p = softmax(s) of L scores N(0, v), f(t) = E e^{-t e^s}; for two heads sigma = (s, s'):

    E sum p^2 = L int t E[e^{2s - t e^s}] f^{L-1} dt                                    (mpmath, a double integral)
    T_ab = E sum_lm sigma^a_l sigma^b_m p_l p'_m                                        (four sums: over t, u and two scores)

the second from one-token averages, where the code differentiates a series.
"""

import functools

import equinox as eqx
import jax.numpy as jnp
import mpmath
import numpy as np

from spectral_ode.problem import FullHeads, MultiTask, Problem
from spectral_ode.systems.softmax import Balanced, _orders, _view
from spectral_ode.systems.softmax._expectations import Expectations, query_rule, reach
from spectral_ode.systems.softmax._leading import Spectrum
from spectral_ode.systems.softmax._tables import one_head, two_heads
from spectral_ode.weights import FullWeights
from validate.plain.numbers import ALGEBRA, Form

V, PAIR = 1.3, (1.1, 0.7, -0.5)  # score variance of a head alone; variances and covariance of two


def tabled(problem: Problem) -> dict[str, Form]:
    """What the tables are made of, at the problem's L."""
    L, rho = problem.task.context, PAIR[2] / np.sqrt(PAIR[0] * PAIR[1])
    ours = (*one_head(L, V), *two_heads(L, *PAIR[:2], np.asarray([rho])))
    return {"tables, directly": Form(ours, (*_one_head(L, V), _two_heads(L, *PAIR)[0]), 1e-7)}


def three_heads(problem: Problem) -> dict[str, Form]:
    """The loss of three heads, one of them with negative scores."""
    order = _order(problem)
    rng, tasks = np.random.default_rng(8), len(order.dimensions)
    mu, omega, signal = rng.uniform(0.5, 1.5, size=(3, tasks)), rng.uniform(0.1, 0.3, size=(3, tasks)), 1.0 + np.arange(tasks)
    omega[1] *= -1
    loss = eqx.filter_jit(
        lambda order, state, signal: order.expectations.loss(state, order.dimensions, signal, jnp.asarray(0.3), queries=4)
    )
    seen = loss(order, Spectrum(jnp.asarray(mu), jnp.asarray(omega)), jnp.asarray(signal))
    return {"loss of three heads": Form(seen, _losses(order.expectations, mu, omega, order.dimensions, signal, 0.3), ALGEBRA)}


def finite(problem: Problem) -> dict[str, Form]:
    """Softmax averages at the problem's L, the average over queries, and the limit of a head alone."""
    order = _order(problem)
    L = int(order.tasks.L)
    c, g = _one_head(L, V)
    limit = order.limit()
    square, weight = query_rule(order.dimensions, order.queries)
    om = np.full((1, len(order.dimensions)), 0.2)
    own = jnp.eye(len(order.dimensions))

    @eqx.filter_jit
    def look(order, limit):
        averages = order.expectations
        place = Spectrum(own * limit.mu[None], own * limit.omega[None])
        pulls = order.pull(place)
        numbers = [jnp.asarray(x) for x in PAIR]
        single = (averages.concentration(jnp.asarray(V)), averages.spread(jnp.asarray(V)), averages.second(jnp.asarray(V)))
        rest = (jnp.max(jnp.abs(jnp.diagonal(pulls.mu))), jnp.max(jnp.abs(jnp.diagonal(pulls.omega))))
        return (
            single,
            averages.moment(*numbers),
            averages.pair(*numbers).C,
            rest,
            order.losses(place),
            reach(jnp.asarray(om), order.dimensions),
        )

    single, moment, C, rest, losses, most = look(order, limit)
    exact_C, exact_T = _two_heads(L, *PAIR)
    d = np.asarray(order.dimensions)
    square_all, _ = query_rule(order.dimensions)
    return {
        "one head: c, g, m2": Form(single, (c, g, V * (c + V * g)), 1e-7),
        "two heads: C": Form(C, exact_C, 1e-6),
        "two heads: T": Form(moment, exact_T, 1e-6),
        "query norms": Form((weight @ square, weight @ square**2), (d, d * (d + 2.0)), 1e-7),
        "pull at the limit": Form(rest, (0.0, 0.0), 1e-6),
        "loss at the limit": Form(limit.loss, losses, 1e-9),
        "reach": Form(most, np.max(square_all @ om[0] ** 2) / 16.0, ALGEBRA),
    }


def _order(problem: Problem) -> _orders.FiniteOrder:
    order = Balanced.from_problem(problem).exact().order
    assert isinstance(order, _orders.FiniteOrder)
    return order


def _losses(averages: Expectations, mu: np.ndarray, omega: np.ndarray, dimensions: tuple[int, ...], signal: np.ndarray, noise: float):
    """The loss of each task query by query and head by head, from the averages of one head and of two."""
    square, weight = query_rule(dimensions, 4)
    heads, tasks = mu.shape
    total = np.array(signal, float)
    v = [jnp.asarray(square @ omega[h] ** 2) for h in range(heads)]
    single = eqx.filter_jit(lambda averages, v: (averages.concentration(v), averages.spread(v)))
    double = eqx.filter_jit(lambda averages, v, u, k: averages.pair(v, u, k))
    alone = [[np.asarray(part) for part in single(averages, v[h])] for h in range(heads)]
    for i in range(tasks):
        r = square[:, i] / dimensions[i]
        for h in range(heads):
            c, spread = alone[h]
            total[i] -= signal[i] * 2 * mu[h, i] * omega[h, i] * np.sum(weight * r * (1 - c))
            total[i] += mu[h, i] ** 2 * np.sum(weight * (signal[i] * (c + r * omega[h, i] ** 2 * spread) + noise * c))
    for h in range(heads):
        for g in [g for g in range(heads) if g != h]:
            x = double(averages, v[h], v[g], jnp.asarray(square @ (omega[h] * omega[g])))
            C, C_h, C_g, C_k, K = (np.asarray(part) for part in (x.C, x.C_h, x.C_g, x.C_k, x.K))
            for i in range(tasks):
                o, p, r = omega[h, i], omega[g, i], square[:, i] / dimensions[i]
                B = C + r * (2 * o**2 * C_h + 2 * p**2 * C_g + o * p * (C_k + K))
                total[i] += mu[h, i] * mu[g, i] * np.sum(weight * (signal[i] * B + noise * C))
    return total


@functools.cache
def _one_head(L: int, v: float) -> tuple[float, float]:
    """The averages c and g by double integrals: g = 1 - c + 6 E[(sum p^2)^2 - sum p^3]."""
    with mpmath.workdps(15):
        root = mpmath.sqrt(v)
        nodes = [(mpmath.mpf(x), mpmath.mpf(w)) for x, w in zip(*_normal(60), strict=True)]

        def mean(j: int, t):
            return mpmath.fsum(w * mpmath.exp(j * root * x - t * mpmath.exp(root * x)) for x, w in nodes)

        def integrand(t):
            f, two, three, four = (mean(j, t) for j in (0, 2, 3, 4))
            cubes = L * t**2 / 2 * three * f ** (L - 1)
            squares = t**3 / 6 * (L * four * f ** (L - 1) + L * (L - 1) * two**2 * f ** (L - 2))
            return mpmath.matrix([L * t * two * f ** (L - 1), squares - cubes])

        knee = 1 / (L * mpmath.exp(mpmath.mpf(v) / 2))
        total = mpmath.matrix([0, 0])
        # The trapezoid rule in log t, whose integrand decays at both ends faster than any power.
        step = mpmath.mpf("0.15")
        for number in range(-140, 30):
            t = knee * mpmath.exp(step * number)
            total += integrand(t) * t * step
        c = float(total[0])
        return c, 1 - c + 6 * float(total[1])


def _normal(count: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.hermite_e.hermegauss(count)
    return x, w / w.sum()


@functools.cache
def _two_heads(L: int, v: float, u: float, k: float) -> tuple[float, np.ndarray]:
    """C and T_ab of two heads, by sums over log t, log u and a 40 x 40 Gauss-Hermite rule."""
    x, w = _normal(40)
    s = np.sqrt(v) * x[:, None] * np.ones(40)
    r = k / np.sqrt(v * u)
    q = np.sqrt(u) * (r * x[:, None] + np.sqrt(1 - r**2) * x[None])
    s, q, chance = s.ravel(), q.ravel(), np.outer(w, w).ravel()
    grid = np.arange(-24.0, 6.0, 0.25)
    t, z = np.exp(grid - np.log(L) - v / 2), np.exp(grid - np.log(L) - u / 2)
    left, right = np.exp(-t[:, None] * np.exp(s)), np.exp(-z[:, None] * np.exp(q))
    mean = lambda factor: (left * (chance * factor)) @ right.T
    f, both = mean(1.0), np.exp(s + q)
    area = np.outer(t, z) * 0.25**2
    C = L * np.sum(area * mean(both) * f ** (L - 1))
    sigma, T = (s, q), np.zeros((2, 2))
    for a in range(2):
        for b in range(2):
            same = L * mean(sigma[a] * sigma[b] * both) * f ** (L - 1)
            T[a, b] = np.sum(area * (same + L * (L - 1) * mean(sigma[a] * np.exp(s)) * mean(sigma[b] * np.exp(q)) * f ** (L - 2)))
    return float(C), T


def view(problem: Problem) -> dict[str, Form]:
    """How full weights are seen: eigenvalues, factors, and what lies outside, at random matrices."""
    task, attention = problem.task, problem.attention
    assert isinstance(task, MultiTask)
    assert isinstance(attention, FullHeads)
    H, I, d, e = attention.heads, len(task.dimensions), sum(task.dimensions), attention.width(task)
    rng = np.random.default_rng(3)
    O, V, K, Q = (rng.normal(size=shape) for shape in ((H, I, e), (H, e, d + I), (H, e, d + I), (H, e, d + I)))
    ends = np.cumsum((0, *task.dimensions))
    blocks = [np.arange(ends[i], ends[i + 1]) for i in range(I)]
    U, W = np.asarray([O[h] @ V[h] for h in range(H)]), np.asarray([K[h].T @ Q[h] / np.sqrt(e) for h in range(H)])[..., :d]
    mu = np.asarray([[U[h, i, d + i] for i in range(I)] for h in range(H)])
    omega = np.asarray([[np.mean([W[h, j, j] for j in block]) for block in blocks] for h in range(H)])
    spread = np.asarray([[np.std([W[h, j, j] for j in block]) for block in blocks] for h in range(H)])
    rows = np.sum(O**2, axis=2) - np.sum(V[..., d:] ** 2, axis=1)
    columns = np.asarray([[(np.sum(K[h][:, block] ** 2) - np.sum(Q[h][:, block] ** 2)) / block.size for block in blocks] for h in range(H)])
    kept = np.sum(mu**2) + sum(np.sum(omega[:, i] ** 2) * block.size for i, block in enumerate(blocks))
    zeros = [np.sum(U[..., :d] ** 2), np.sum(U[..., d:] ** 2) - np.sum(mu**2), np.sum(W[:, d:] ** 2)]
    zeros.append(np.sum(W[:, :d] ** 2) - np.sum(np.diagonal(W[:, :d], axis1=1, axis2=2) ** 2))
    weights = FullWeights(*(jnp.asarray(part) for part in (O, V, K, Q)))
    look = eqx.filter_jit(
        lambda weights: (
            _view.spectrum(weights, task.dimensions),
            _view.factors(weights, task.dimensions),
            _view.factors(weights, task.dimensions).balances(),
            _view.outside(weights, task.dimensions),
        )
    )
    spectrum, factors, balances, outside = look(weights)
    total = np.sum(U**2) + np.sum(W**2)
    return {
        "eigenvalues": Form(tuple(spectrum), (mu, omega), ALGEBRA),
        "factors": Form((factors.o * factors.v, factors.k * factors.q / np.sqrt(e), *balances), (mu, omega, rows, columns), ALGEBRA),
        "outside": Form((outside["zeros"], outside["spread"], outside["outside"]), (np.sqrt(zeros), spread, 1 - kept / total), ALGEBRA),
    }
