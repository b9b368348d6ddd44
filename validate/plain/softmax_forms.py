r"""Closed forms of softmax attention to leading order (arXiv:2402.19442) against minimization, root finding and eigenvalues.

The loss is written once more here, and minimized by scipy where the code has a formula.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from scipy.optimize import brentq, minimize

from spectral_ode.problem import Problem
from spectral_ode.systems import load
from spectral_ode.systems.softmax import _leading, _optimal, _orders
from spectral_ode.systems.softmax._leading import Spectrum
from validate.plain.numbers import ALGEBRA, Form, floats, least
from validate.plain.softmax import Tasks, emergence, slaved
from validate.plain.softmax_field import field
from validate.plain.softmax_finite import finite, tabled, three_heads, view


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
        level = brentq(lambda level: np.sum(shares(level)) - budget, 0.0, 1e9, xtol=1e-15, rtol=np.float64(1e-14))
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
    system = load(problem.system).from_problem(replace(problem, task=replace(problem.task, tested=(7, 50))))
    served = mu * om
    head = np.argmax(np.abs(served), axis=0)
    pick = lambda part: part[head, np.arange(I)]
    losses, elsewhere = plain.losses(mu, om), np.asarray([np.sum(plain.losses(mu, om, L)) / np.sum(plain.S) for L in (7.0, 50.0)])
    zero = {"learned": jnp.zeros(I), "omega": jnp.zeros(I)}
    crossings = np.concatenate([[-0.05, -0.15 * (10 / d) ** 0.5, -0.7 * d**-0.5] for d in plain.d])
    kappa = np.max(np.einsum("hj,hj,j->h", om, om, plain.d)) / np.log(plain.L)

    @eqx.filter_jit
    def look(system, tasks, spectrum):
        seen = system.observe_spectrum(spectrum)
        phases = jnp.stack(list(system.phases(zero).values()))
        rates = (*_leading.convergence_rates(tasks), _leading.slaved_rate(tasks), _leading.slaved(jnp.full(I, 0.2), tasks))
        limit = [_optimal.limit(tasks, sharing=sharing) for sharing in (1.0, 2.0)]
        factors = _leading.balanced(jax.tree.map(jnp.abs, spectrum), tasks)
        extra = (tasks.phi, tasks.x, tasks.speed, _leading.loss(spectrum, tasks), *factors)
        return {name: seen[name] for name in (*NAMES, "tests")}, phases, rates, limit, extra

    seen, phases, rates, limits, extra = look(system, tasks, Spectrum(jnp.asarray(mu), jnp.asarray(om)))
    exact = (np.sum(losses) / np.sum(plain.S), losses / plain.S, pick(om), pick(mu), head, np.sum(served, axis=0) * (1 + plain.x), kappa)
    best = [_alone(plain, i, sharing) for sharing in (1, 2) for i in range(I)]
    found = [tuple(float(part[i]) for part in limit) for limit in limits for i in range(I)]
    slow, fast, lazy = _rates(problem, plain)
    E = plain.phi / plain.L * np.exp(plain.d * 0.04)
    v, k = np.sqrt(np.abs(mu)), np.sqrt(np.abs(om) * plain.d_e**0.5)
    return {
        "observed spectrum": Form(tuple(seen[name] for name in NAMES), exact, ALGEBRA),
        "tests at other lengths": Form(seen["tests"], elsewhere, ALGEBRA),
        "phases": Form(phases, crossings, ALGEBRA),
        "limits of heads alone": Form(found, best, 1e-7),
        "rates of convergence": Form(rates[:2], (slow, fast), 1e-6),
        "slaved rate and mu": Form(rates[2:], (lazy, 0.2 / (0.04 + E)), 1e-6),
        "phi, x, speed, loss, factors": Form(
            extra, (plain.phi, plain.x, 4 * plain.S / plain.d / plain.d_e**0.5, np.sum(losses), *[v] * 2, *[k] * 2), ALGEBRA
        ),
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


def filling(problem: Problem) -> dict[str, Form]:
    """Shares of budgets, small and large, that unequal tasks get; some get nothing of a small one."""
    uneven = replace(problem, task=replace(problem.task, dimensions=(4, 9, 15), signal=(1.0, 1.6, 0.5)))
    plain, budgets = Plain(uneven), (1e-3, 0.05, 0.3, 3.0)
    ours = eqx.filter_jit(lambda tasks: [_optimal.fill(budget, tasks) for budget in budgets])(tasks_of(uneven))
    return {"shares of unequal tasks": Form(ours, [plain.filled(budget) for budget in budgets], 1e-9)}


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
    pair = lambda i: least(lambda mu: _pair(plain, i, mu, k), -1e3, 1e3)[1]
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


FORMS: dict[str, Any] = {
    "softmax.balanced": (field, leading, tabled, three_heads, finite),
    "softmax.factored": (field, leading, view),
    "softmax.warmup": (field, leading),
    "softmax.emergence": (field, leading, filling, optimal),
    "softmax.slaved": (field, leading),
}
