r"""Closed forms of softmax attention (arXiv:2402.19442) against minimization, root finding, eigenvalues and quadrature.

The leading-order loss is written once more here and minimized by scipy where the code has a formula. Finite L: p = softmax(s) of L scores,

    E sum p^2 = L int t E[e^{2s - t e^s}] f^{L-1} dt,   f(t) = E e^{-t e^s}        (mpmath, a double integral)
    T_ab = E sum_lm sigma^a_l sigma^b_m p_l p'_m  of two heads                       (four sums: over t, u and two scores)

the second as sums of one-token averages, where the code differentiates a series.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import mpmath
import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar

from spectral_ode.problem import FullHeads, MultiTask, Problem
from spectral_ode.systems import load
from spectral_ode.systems.softmax import Balanced, _leading, _optimal, _orders, _view
from spectral_ode.systems.softmax._expectations import query_rule, reach
from spectral_ode.systems.softmax._leading import Spectrum
from spectral_ode.weights import FullWeights
from validate.plain.numbers import Form, floats
from validate.plain.softmax import Tasks, emergence, slaved

ALGEBRA = 1e-11


class Plain:
    """The tasks of a problem in floats."""

    def __init__(self, problem: Problem):
        tasks = Tasks(problem)
        self.d, self.S, self.phi = (floats(part) for part in (tasks.d, tasks.S, tasks.phi))
        self.L, self.d_e, self.sigma2 = float(tasks.L), float(tasks.root) ** 2, float(tasks.sigma2)
        self.x = np.e * self.d * self.phi / self.L

    def losses(self, mu: np.ndarray, om: np.ndarray, L: float | None = None) -> np.ndarray:
        """Loss_i of heads x tasks."""
        E = np.exp(np.einsum("hj,gj,j->hg", om, om, self.d))
        return self.S * ((1 - np.sum(mu * om, axis=0)) ** 2 + self.phi / (L or self.L) * np.einsum("hi,gi,hg->i", mu, mu, E))

    def filled(self, budget: float) -> np.ndarray:
        """Shares of a budget by root finding for the level of the water."""
        dry = self.phi * self.d / self.L
        shares = lambda level: np.maximum(level * np.sqrt(self.S * dry) - dry, 0.0)
        level = brentq(lambda level: np.sum(shares(level)) - budget, 0.0, 1e9, xtol=1e-15, rtol=1e-14)
        return shares(level)

    def shared(self, shares: np.ndarray) -> np.ndarray:
        """Losses of shares."""
        return self.S / (1 + self.L / (self.phi * self.d) * shares)


def tasks_of(problem: Problem) -> _leading.Tasks:
    """What the code makes of a problem."""
    return _orders.tasks_of(problem)


def leading(problem: Problem) -> dict[str, Form]:
    """Losses, observables, limits and rates to leading order, for any of the systems."""
    plain, tasks = Plain(problem), tasks_of(problem)
    I, H = plain.d.size, problem.attention.heads
    rng = np.random.default_rng(1)
    mu, om = rng.uniform(-1, 1, (H, I)), rng.uniform(-0.3, 0.3, (H, I))
    system = load(problem.system).from_problem(problem)
    served = mu * om
    head = np.argmax(np.abs(served), axis=0)
    pick = lambda part: part[head, np.arange(I)]
    losses = plain.losses(mu, om)
    zero = {"learned": jnp.zeros(I), "omega": jnp.zeros(I)}
    crossings = np.concatenate([[-0.05, -0.15 * (10 / d) ** 0.5, -0.7 * d**-0.5] for d in plain.d])
    kappa = np.max(np.einsum("hj,hj,j->h", om, om, plain.d)) / np.log(plain.L)

    @eqx.filter_jit
    def look(system, tasks, spectrum):
        seen = system.observe_spectrum(spectrum)
        phases = jnp.stack(list(system.phases(zero).values()))
        rates = (*_leading.convergence_rates(tasks), _leading.slaved_rate(tasks), _leading.slaved(jnp.full(I, 0.2), tasks))
        limit = [_optimal.limit(tasks, sharing=sharing) for sharing in (1.0, 2.0)]
        extra = (tasks.phi, tasks.x, tasks.speed, _leading.loss(spectrum, tasks))
        return {name: seen[name] for name in NAMES}, phases, rates, limit, extra

    seen, phases, rates, limits, extra = look(system, tasks, Spectrum(jnp.asarray(mu), jnp.asarray(om)))
    exact = (np.sum(losses) / np.sum(plain.S), losses / plain.S, pick(om), pick(mu), head, np.sum(served, axis=0) * (1 + plain.x), kappa)
    best = [_alone(plain, i, sharing) for sharing in (1, 2) for i in range(I)]
    found = [tuple(float(part[i]) for part in limit) for limit in limits for i in range(I)]
    slow, fast, lazy = _rates(problem, plain)
    E = plain.phi / plain.L * np.exp(plain.d * 0.04)
    return {
        "observed spectrum": Form(tuple(seen[name] for name in NAMES), exact, ALGEBRA),
        "phases": Form(phases, crossings, ALGEBRA),
        "limits of heads alone": Form(found, best, 1e-7),
        "rates of convergence": Form(rates[:2], (slow, fast), 1e-6),
        "slaved rate and mu": Form(rates[2:], (lazy, 0.2 / (0.04 + E)), 1e-6),
        "phi, x, speed, loss": Form(extra, (plain.phi, plain.x, 4 * plain.S / plain.d / plain.d_e**0.5, np.sum(losses)), ALGEBRA),
        "start": Form(float(system.landmarks()["loss"]["start"]), 1.0, ALGEBRA),
        "landmarks": Form(
            [[float(level) for level in system.landmarks()[name].values()][-1] for name in ("omega", "mu")],
            [best[I - 1][1], best[I - 1][0]],
            1e-7,
        ),
    }


NAMES = ("loss", "task losses", "omega", "mu", "head", "learned", "reach")


def _alone(plain: Plain, i: int, sharing: int) -> tuple[float, float, float]:
    """mu, omega and loss (of one of `sharing` equal tasks) of the best head alone, by minimization."""
    d, S, noise = plain.d[i], plain.S[i], plain.phi[i] / plain.L

    def loss(logs):
        mu, om = np.exp(logs)
        return S * ((1 - mu * om) ** 2 + noise * mu**2 * np.exp(sharing * d * om**2))

    guess = np.log([0.7 * np.sqrt(sharing * d), 0.8 / np.sqrt(sharing * d)])
    found = minimize(loss, guess, method="Nelder-Mead", options={"xatol": 1e-11, "fatol": 1e-16, "maxiter": 4000})
    mu, om = np.exp(found.x)
    return float(mu), float(om), float(found.fun)


def _rates(problem: Problem, plain: Plain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rates at the limit, from differences of the plain fields."""
    I = plain.d.size
    om = plain.d**-0.5
    mu = om / (om**2 + np.e * plain.phi / plain.L)
    with mpmath.workdps(30):
        step = mpmath.mpf(10) ** -12
        ln = lambda values: np.asarray([mpmath.log(mpmath.mpf(float(value))) for value in values], object)
        both, alone = emergence(problem).rate, slaved(problem).rate
        state, one = np.concatenate([ln(mu), ln(om)]), ln(om)
        columns = []
        for j in range(2 * I):
            shift = np.asarray([step if i == j else mpmath.mpf(0) for i in range(2 * I)], object)
            columns.append(floats((both(state + shift) - both(state - shift)) / (2 * step)))
        lazy = floats((alone(one - step) - alone(one + step)) / (2 * step))
    jacobian = np.asarray(columns).T
    pairs = [np.sort(-np.linalg.eigvals(jacobian[np.ix_([i, I + i], [i, I + i])]).real) for i in range(I)]
    return np.asarray([pair[0] for pair in pairs]), np.asarray([pair[1] for pair in pairs]), lazy


def optimal(problem: Problem) -> dict[str, Form]:
    """Budgets, shares, benchmarks, allocation."""
    plain, tasks = Plain(problem), tasks_of(problem)
    I = plain.d.size
    rng = np.random.default_rng(2)
    a, b, k = 0.8, 0.3, 0.6
    kappa = np.full((3, 3), b) + (a - b) * np.eye(3)
    root = rng.normal(size=(3, 3)) / 3
    angled = root @ root.T
    start = rng.uniform(0.01, 0.05, (2, 3, I))
    heads = np.asarray([i % 2 for i in range(I)])

    @eqx.filter_jit
    def look(tasks, start):
        head = _optimal.limit(tasks)
        spectrum, losses = _optimal.allocation_limit(jnp.asarray(heads), tasks, heads=2)
        return {
            "shares": (_optimal.fill(0.7, tasks), _optimal.fill(1e-3, tasks)),
            "losses of shares": _optimal.shared_losses(jnp.full(I, 0.2), tasks),
            "best single head": jnp.sum(_optimal.one_head(tasks).loss),
            "budgets": (_optimal.equiangular_budget(a, b, heads=3), _optimal.budget(jnp.asarray(angled))),
            "lower bounds": tuple(jnp.sum(_optimal.lower_bound(count, tasks)) for count in (1, 2, I + 3)),
            "signed pair": _optimal.signed_pair(k, tasks),
            "escape rate": _optimal.escape_rate(tasks),
            "linear attention": _optimal.linear_attention(tasks),
            "other length": _optimal.other_length(tasks, 3 * tasks.L),
            "softmax regimes": (_optimal.exponential(0.7, tasks.L), _optimal.saturation(tasks.L)),
            "Hermite": _optimal.hermite_transfer(3, head),
            "emergence times": _optimal.emergence_times(start, tasks),
            "allocation": _optimal.allocate(start, tasks),
            "shared heads": (losses, _leading.losses(spectrum, tasks)),
        }

    ours = look(tasks, Spectrum(*(jnp.asarray(part) for part in start)))
    best = _single(plain, np.ones(I, bool))
    times = _emergence(plain, *start)
    pair = lambda i: minimize_scalar(lambda mu: _pair(plain, i, mu, k), bounds=(-1e3, 1e3), method="bounded", options={"xatol": 1e-12}).fun
    om, mu = plain.d**-0.5, plain.d**0.5 / (1 + plain.x)
    kept = 1 / (1 + plain.x)
    grouped = np.zeros(I)
    for head in (0, 1):
        member = heads == head
        if member.any():
            grouped[member] = _single_losses(plain, member)[member]
    exact = {
        "shares": (plain.filled(0.7), plain.filled(1e-3)),
        "losses of shares": plain.shared(np.full(I, 0.2)),
        "best single head": best,
        "budgets": (np.trace(kappa @ np.linalg.inv(np.exp(kappa))), np.trace(angled @ np.linalg.inv(np.exp(angled)))),
        "lower bounds": tuple(np.sum(plain.shared(plain.filled(M))) for M in (1 / np.e, float(min(1, I)), float(min(I + 2, I)))),
        "signed pair": np.asarray([pair(i) for i in range(I)]),
        "escape rate": _idle(problem, mu, om),
        "linear attention": plain.S * plain.phi * plain.d / (plain.L + plain.phi * plain.d),
        "other length": plain.S * ((1 - kept) ** 2 + plain.phi / (3 * plain.L) * mu**2 * np.e),
        "softmax regimes": (np.exp(0.7) / plain.L, np.log(plain.L) / 2),
        "Hermite": mu * om**3,
        "emergence times": times,
        "allocation": np.argmin(times, axis=0),
        "shared heads": (grouped, grouped),
    }
    loose = {"best single head": 1e-8, "signed pair": 1e-8, "shared heads": 1e-8, "lower bounds": 1e-9}
    return {name: Form(ours[name], exact[name], loose.get(name, 1e-10)) for name in exact}


def _idle(problem: Problem, mu: np.ndarray, om: np.ndarray) -> np.ndarray:
    """How fast o - v of a head without weights grows beside one head per task: (o - v)' = -((ln mu)'/2) (o - v)."""
    tasks = Tasks(problem)
    tasks.H = tasks.I + 1
    beside = lambda values: np.concatenate([np.diag(values), np.zeros((1, tasks.I))])
    return -floats(tasks.rates(beside(mu), beside(om))[0][-1]) / 2


def _pair(plain: Plain, i: int, mu: float, k: float) -> float:
    om = np.sqrt(k / plain.d[i])
    E = np.exp(np.asarray([[k, -k], [-k, k]]))
    both = np.asarray([mu, -mu])
    return plain.S[i] * ((1 - 2 * mu * om) ** 2 + plain.phi[i] / plain.L * both @ E @ both)


def _single_losses(plain: Plain, member: np.ndarray) -> np.ndarray:
    """Losses with one head for the member tasks, its omega by minimization and mu at its best."""

    def losses(omega):
        om = np.where(member, np.abs(omega), 0.0)
        E = plain.phi / plain.L * np.exp(np.sum(plain.d * om**2))
        return plain.S * (1 - om**2 / (om**2 + E))

    found, best = None, np.inf
    for scale in (0.3, 0.7, 1.0):
        guess = scale / np.sqrt(np.sum(member) * plain.d)
        one = minimize(
            lambda omega: np.sum(losses(omega)), guess, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-15, "maxiter": 8000}
        )
        if one.fun < best:
            found, best = one.x, one.fun
    return losses(found)


def _single(plain: Plain, member: np.ndarray) -> float:
    return float(np.sum(_single_losses(plain, member)))


def _emergence(plain: Plain, mu: np.ndarray, om: np.ndarray) -> np.ndarray:
    """T by the hypergeometric function."""
    D = plain.d * plain.d_e**0.5
    p = 1 / (1 + plain.phi * D / plain.L)
    rho = mu * (1 + plain.phi * D / plain.L) / (D * om)
    each = [[mpmath.hyp2f1(1, p[i], 1 + p[i], 1 - rho[h, i]) for i in range(D.size)] for h in range(len(mu))]
    return floats(np.asarray(each, object)).reshape(mu.shape) / (4 * plain.S * p * om)


def finite(problem: Problem) -> dict[str, Form]:
    """Softmax averages at the problem's L, the average over queries, and the limit of a head alone."""
    system = load(problem.system).from_problem(problem)
    assert isinstance(system, Balanced)
    order = system.exact().order
    assert isinstance(order, _orders.FiniteOrder)
    L, v, pair = int(order.tasks.L), 1.3, (1.1, 0.7, -0.5)
    c, g = _one_head(L, v)
    limit = order.limit()
    square, weight = query_rule(order.dimensions, order.queries)
    om = np.full((1, len(order.dimensions)), 0.2)
    own = jnp.eye(len(order.dimensions))

    @eqx.filter_jit
    def look(order, limit):
        averages = order.expectations
        place = Spectrum(own * limit.mu[None], own * limit.omega[None])
        pulls = order.pull(place)
        numbers = [jnp.asarray(x) for x in pair]
        single = (averages.concentration(jnp.asarray(v)), averages.spread(jnp.asarray(v)), averages.second(jnp.asarray(v)))
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
    exact_C, exact_T = _two_heads(L, *pair)
    d = np.asarray(order.dimensions)
    square_all, _ = query_rule(order.dimensions)
    return {
        "one head: c, g, m2": Form(single, (c, g, v * (c + v * g)), 1e-7),
        "two heads: C": Form(C, exact_C, 1e-5),
        "two heads: T": Form(moment, exact_T, 1e-4),
        "query norms": Form((weight @ square, weight @ square**2), (d, d * (d + 2.0)), 1e-7),
        "pull at the limit": Form(rest, (0.0, 0.0), 1e-6),
        "loss at the limit": Form(limit.loss, losses, 1e-9),
        "reach": Form(most, np.max(square_all @ om[0] ** 2) / 16.0, ALGEBRA),
    }


def _one_head(L: int, v: float) -> tuple[float, float]:
    """c and g by double integrals: g = 1 - c + 6 E[(sum p^2)^2 - sum p^3]."""
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


def _two_heads(L: int, v: float, u: float, k: float) -> tuple[float, np.ndarray]:
    """C and T_ab of two heads, by sums over log t, log u and a 40 x 40 Gauss-Hermite rule."""
    x, w = _normal(40)
    s = np.sqrt(v) * x[:, None] * np.ones(40)
    r = k / np.sqrt(v * u)
    q = np.sqrt(u) * (r * x[:, None] + np.sqrt(1 - r**2) * x[None])
    s, q, chance = s.ravel(), q.ravel(), np.outer(w, w).ravel()
    grid = np.arange(-14.0, 6.0, 0.25)
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


FORMS: dict[str, Any] = {
    "softmax.balanced": lambda problem: leading(problem) | finite(problem),
    "softmax.factored": lambda problem: leading(problem) | view(problem),
    "softmax.warmup": leading,
    "softmax.emergence": lambda problem: leading(problem) | optimal(problem),
    "softmax.slaved": leading,
}
