r"""The closed forms of linear attention: times as integrals, constants as roots, moments as sums over the nodes of exact Gaussian rules."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
from scipy.integrate import solve_ivp

from spectral_ode import features
from spectral_ode.problem import MergedHeads, Problem, Regression, SeparateHeads
from spectral_ode.systems.linear import Merged, Separate, _saddles, _scalar, blocks
from spectral_ode.systems.linear.merged import LEVELS, State
from spectral_ode.systems.linear.separate import HALF
from spectral_ode.weights import MergedWeights

TASK = Regression(spectrum=(0.5, 0.8), prior=(1.4, 0.7), noise=0.3, context=7, lengths="all")
SEPARATE = Problem(task=TASK, attention=SeparateHeads(heads=2))
MERGED = Problem(system="linear.merged", task=replace(TASK, lengths="full"), attention=MergedHeads(heads=3))
WHITE = replace(MERGED, task=Regression(spectrum=(0.6, 0.6, 0.6), noise=0.2, context=9))


def curve():
    """S' = s^2 - s^5: the time between two points, and the point at a time."""
    time = lambda a, b: mp.quad(lambda s: 1 / (s**2 - s**5), [a, (a + b) / 2, b])
    low, middle, high = mp.mpf("0.03"), mp.mpf("0.4"), mp.mpf("0.99")
    yield _scalar.g(jnp.asarray(0.4)) - _scalar.g(jnp.asarray(0.03)), time(low, middle)
    yield _scalar.g(jnp.asarray(0.99)) - _scalar.g(jnp.asarray(0.4)), time(middle, high)
    for s in (0.001, 0.03, 0.4, 0.55, 0.99, 1 - 1e-9):
        yield _scalar.inverse(_scalar.g(jnp.asarray(s))), s


def _moments(lam, sig):
    """g_d and C_d of each direction from the tokens one by one: E y x_d, and pairs of tokens that are the same or not."""
    noise2, total = mp.mpf(TASK.noise) ** 2, mp.fsum(x * y for x, y in zip(lam, sig, strict=True))
    g, C = [], []
    for x, y in zip(lam, sig, strict=True):
        same = x * total + 2 * y * x**2 + noise2 * x  # E (y x_d)^2 = E (w.x)^2 x_d^2 + noise
        each = [(n * (n - 1) * y * x**2, n * same, n) for n in range(1, TASK.context + 1)]
        g.append(mp.fsum(n * y * x**2 / n for _, _, n in each) / TASK.context)
        C.append(mp.fsum((pairs + own) / mp.mpf(n) ** 2 for pairs, own, n in each) / TASK.context)
    return g, C


def statistics():
    """Rates, second moments, the loss of a map that mixes directions, its minimum and the gains."""
    data = Separate.from_problem(SEPARATE).data
    lam, sig = [mp.mpf("0.8"), mp.mpf("0.5")], [mp.mpf("0.7"), mp.mpf("1.4")]  # by falling rate lam^2 sig
    g, C = _moments(lam, sig)
    yield jnp.stack([data.lam, data.sig]), [lam, sig]
    yield jnp.stack([data.g, data.C, data.c]), [g, C, [c / x for c, x in zip(C, g, strict=True)]]
    A = [[0.9, -0.3], [0.4, 1.7]]
    power = lam[0] * sig[0] + lam[1] * sig[1]
    loss = lambda A: power - 2 * sum(A[d][d] * g[d] for d in (0, 1)) + sum(A[a][b] ** 2 * C[a] * lam[b] for a in (0, 1) for b in (0, 1))
    yield data.loss(jnp.asarray(A)), loss(A)
    pull = [[-mp.diff(lambda x, i=i, j=j: loss(_put(A, i, j, x)), A[i][j]) / 2 for j in (0, 1)] for i in (0, 1)]
    turned = Separate.from_problem(replace(SEPARATE, task=replace(TASK, rotation=3))).data
    yield data.pull(jnp.asarray(A)), pull
    yield turned.basis.T @ turned.pull(turned.basis @ jnp.asarray(A) @ turned.basis.T) @ turned.basis, pull
    yield turned.basis @ turned.basis.T, np.eye(2)
    best = [mp.findroot(lambda x, d=d: mp.diff(lambda x: loss(_put([[0, 0], [0, 0]], d, d, x)), x), 1) for d in (0, 1)]
    yield data.best, best
    nothing = [[0, 0], [0, 0]]
    yield data.gain, [loss(nothing) - loss(_put(nothing, d, d, best[d])) for d in (0, 1)]
    yield [data.plateau_loss(m) for m in (0, 1, 2)], [loss(nothing), loss(_put(nothing, 0, 0, best[0])), loss([[best[0], 0], [0, best[1]]])]


def _put(A, i, j, value):
    changed = [list(row) for row in A]
    changed[i][j] = value
    return changed


def scalars():
    """The scalar ODE of each direction: its rest, its time and its course; how much of a drop is done."""
    system = Separate.from_problem(SEPARATE)
    lam = [mp.mpf("0.8"), mp.mpf("0.5")]
    g, C = _moments(lam, [mp.mpf("0.7"), mp.mpf("1.4")])
    field = lambda d, v: g[d] * v**2 - lam[d] * C[d] * v**5
    rest = [mp.findroot(lambda v, d=d: field(d, v) / v**2, 1) for d in (0, 1)]
    yield system.limit, rest
    v0, v1 = [mp.mpf("0.05"), mp.mpf("0.08")], [mp.mpf("0.7"), mp.mpf("0.6")]
    time = [mp.quad(lambda v, d=d: 1 / field(d, v), mp.linspace(v0[d], v1[d], 6)) for d in (0, 1)]
    begin, end = (jnp.asarray([float(x) for x in part]) for part in (v0, v1))
    yield system.time_to(end, begin), time
    yield [system.closed_form(jnp.asarray(float(t)), begin)[d] for d, t in enumerate(time)], v1
    yield system.scalar_field(end), [field(d, v1[d]) for d in (0, 1)]
    state = type(system.project(_start(system)))(end)
    seen = system.observe(state)
    yield seen["loss"], system.data.loss(jnp.diag(end**3))
    yield seen["learned"], [(v1[d] / rest[d]) ** 3 for d in (0, 1)]
    share = mp.mpf(HALF)  # of A: half of the drop is done when (1 - A/A*)^2 = 1/2
    yield (1 - share) ** 2, mp.mpf(1) / 2
    forecast, start = system.forecast(_start(system)), system.project(_start(system)).v
    first = [mp.mpf(float(v)) for v in start]
    half = [mp.quad(lambda v, d=d: 1 / field(d, v), mp.linspace(first[d], share ** (mp.mpf(1) / 3) * rest[d], 40)) for d in (0, 1)]
    yield forecast["half"], half


def _start(system):
    """Some heads of order one."""
    from spectral_ode.weights import SeparateWeights

    key, query = jnp.asarray([[[0.2, 0.1]], [[-0.1, 0.25]]]), jnp.asarray([[[0.15, -0.05]], [[0.1, 0.2]]])
    return SeparateWeights(jnp.asarray([0.3, 0.2]), key, query)


def saddles():
    """Losses and directions of negative curvature at all fixed points, from the Hessian of the loss of all weights."""
    system = Separate.from_problem(SEPARATE)
    flat = lambda tree: jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])
    for point in system.fixed_points():
        at = system.at_fixed_point(point.subset, 2)
        yield point.loss, float(system.population_loss(at))
        yield 1 + jnp.max(jnp.abs(flat(system.weights_field(at)))), 1
        hessian = jax.hessian(lambda x, at=at: system.population_loss(_unflat(x, at)))(flat(at))
        yield 1 + point.negative, 1 + int(jnp.sum(jnp.linalg.eigvalsh(hessian) < -1e-9))
    yield system.observe_weights(system.at_fixed_point((0, 1), 2))["learned"], [1, 1]
    yield 1 + system.outside(system.at_fixed_point((0, 1), 2)), 1
    mixed = _saddles.weights_at((0, 1), 2, system.limit, jnp.eye(2))
    tilted = replace_key(mixed, jnp.asarray([[[0.0, 2.0]], [[0.0, 0.0]]]))
    total, extra = 3 * jnp.sum(system.limit**2), 4.0
    yield system.outside(tilted), extra / (total + extra)


def replace_key(weights, more):
    """The weights with something added to their keys."""
    return type(weights)(weights.value, weights.key + more, weights.query)


def _unflat(x, like):
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    return jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(x, ends), leaves, strict=True)])


def drop():
    """Merged: the white closed form solves its equation, the constant of the escape law, the minimum, the growing mode, what is outside."""
    white, system = Merged.from_problem(WHITE), Merged.from_problem(MERGED)
    state = State(jnp.asarray(0.01), 0.01 * white.data.g / white.rate)
    for t in (0.0, 3.0, 9.0):
        A = white.closed_form(jnp.asarray(t), state)
        s = jnp.sqrt(jnp.linalg.norm(A))  # s^2 = |a|^2 and s a = A
        field = white.vector_field(jnp.zeros(()), State(s, A / s))
        yield jax.jacfwd(lambda t: white.closed_form(t, state))(t), field.s * A / s + s * field.a
    yield white.closed_form(jnp.asarray(0.0), state), state.s * state.a
    size, rate = mp.mpf(float(white.data.best[0])) * mp.sqrt(3), mp.mpf(float(white.rate))
    faint = mp.mpf(10) ** -12
    time = mp.log((size / faint**2 - 1) / (1 / mp.mpf(HALF) - 1)) / (2 * rate)  # A = HALF A* in the closed form
    yield white.escape_constant(), rate * time + mp.log(faint)
    yield system.escape_constant(), _constant(system)
    least = system.at_minimum(3)
    yield system.population_loss(least), system.data.plateau_loss(2)
    yield 1 + jnp.max(jnp.abs(system.weights_field(least).key_query)), 1
    yield 1 + jnp.max(jnp.abs(system.weights_field(least).value)), 1
    yield [point.loss for point in system.fixed_points(3)], [system.data.plateau_loss(2), system.data.power]
    weights = MergedWeights(jnp.asarray([0.3, -0.2, 0.1]), jnp.asarray(np.cos(np.arange(12.0)).reshape(3, 2, 2)))
    m = np.diag(np.asarray(system.data.g)) / np.linalg.norm(system.data.g)
    r = [(weights.value[h] + np.sum(np.asarray(weights.key_query[h]) * m)) / 2 for h in range(3)]
    grown = system.project(weights)
    yield grown.s, np.linalg.norm(r)
    yield grown.a, np.linalg.norm(r) * np.diag(m)
    seen = system.observe_weights(least)
    yield jnp.stack([seen["sigma"], seen["learned"], 1 + seen["outside"]]), [1, 1, 1]
    tilted = MergedWeights(least.value, least.key_query.at[0, 0, 1].add(0.1))
    yield system.outside(tilted), 0.01 / (2 * jnp.linalg.norm(system.data.best) + 0.01)
    yield LEVELS["half 1"], 0.5


def _constant(system):
    """K by a tight solver of another kind: ln s grows at the rate |g| from a faint start."""
    g, weight = (np.asarray(part) for part in (system.data.g, system.data.lam * system.data.C))
    total = float(jnp.sum(system.data.gain))
    rate, faint = np.linalg.norm(g), 1e-6

    def field(_, y):
        pull = g - weight * y[0] * y[1:]
        return np.concatenate([[y[1:] @ pull], y[0] * pull])

    def half(_, y):
        A = y[0] * y[1:]
        return (2 * g @ A - weight @ A**2) / total - 0.5

    half.terminal = True
    start = np.concatenate([[faint], faint * g / rate])
    found = solve_ivp(field, (0, 1e3 / rate), start, "DOP853", rtol=1e-12, atol=1e-18, events=half)
    return rate * found.t_events[0][0] + np.log(faint)


def prompts():
    """Moments of the features over all sequences of one or two tokens, by Gaussian rules that are exact for them."""
    rng = np.random.default_rng(0)
    tokens, row, W = rng.normal(size=(3, 5)), rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 2))
    direct = sum(row[h] @ (0.2 * tokens @ tokens.T) @ W[h] @ tokens[:2, -1] for h in range(2))
    t, phi = features.coefficients(jnp.asarray(row), jnp.asarray(W)), features.features(jnp.asarray(tokens), jnp.asarray(0.2))
    yield jnp.dot(t, phi), direct
    gradient = jax.grad(lambda row: jnp.dot(features.coefficients(row, jnp.asarray(W)), phi))(jnp.asarray(row))
    yield gradient, [(0.2 * tokens @ tokens.T) @ W[h] @ tokens[:2, -1] for h in range(2)]
    for share in (0.0, 0.4, 1.0):
        problem = replace(SEPARATE, system="linear.blocks", task=replace(TASK, context=2, in_context=share, rotation=3))
        found = blocks.population_moments(problem, share, (1, 2))
        yield from zip((found.M, found.b, found.power), _enumerated(problem, share), strict=True)
        system = blocks.Blocks.from_problem(problem)
        t = jnp.cos(jnp.arange(found.b.size, dtype=float))
        yield system.train.loss(t), found.power - 2 * jnp.dot(t, found.b) + t @ found.M @ t
        M, b = np.asarray(found.M), np.asarray(found.b)
        yield system.floor, float(found.power) - b @ np.linalg.pinv(M, rcond=1e-12) @ b


def _enumerated(problem, share):
    """M, b and power as sums over nodes of tasks, tokens, noise and queries."""
    data = Separate.from_problem(replace(problem, system="linear.separate", task=replace(problem.task, in_context=1.0))).data
    basis, lam, sig = (np.asarray(part) for part in (data.basis, data.lam, data.sig))
    w0, noise = np.asarray(blocks.shared_task(problem)), problem.task.noise
    laws = [(share, None)] * (share > 0) + [(1 - share, w0)] * (share < 1)
    sums = [0.0, 0.0, 0.0]
    for n in (1, 2):
        for probability, task in laws:
            rules = [_rule(3)] * (2 if task is None else 0) + [_rule(3)] * (3 * n) + [_rule(4)] * 2
            nodes = np.array(list(itertools.product(*(rule[0] for rule in rules))))
            weight = probability / 2 * np.prod(np.array(list(itertools.product(*(rule[1] for rule in rules)))), axis=1)
            tasks = nodes[:, :2] * np.sqrt(sig) @ basis.T if task is None else np.broadcast_to(task, (len(nodes), 2))
            rest = nodes[:, 2:] if task is None else nodes
            x = rest[:, : 2 * n].reshape(-1, n, 2) * np.sqrt(lam) @ basis.T
            query = rest[:, -2:] * np.sqrt(lam) @ basis.T
            errors = rest[:, 2 * n : 3 * n]
            y = errors if share == 0 else np.einsum("pd,pnd->pn", tasks, x) + noise * errors
            whole = np.concatenate([x, y[:, :, None]], axis=2)
            last = np.concatenate([query, np.zeros((len(query), 1))], axis=1)
            gram = problem.factor(n) * (np.einsum("pna,pnb->pab", whole, whole) + last[:, :, None] * last[:, None, :])
            a, b = np.triu_indices(3)
            phi = (gram[:, a, b][:, :, None] * query[:, None, :]).reshape(len(query), -1)
            target = np.sum(tasks * query, axis=1)
            for number, value in enumerate((phi.T * weight @ phi, phi.T @ (weight * target), weight @ target**2)):
                sums[number] = sums[number] + value
    return sums


def _rule(count):
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


FORMULAS = {
    "linear.separate": {
        "the universal curve and its inverse": (curve,),
        "moments of the tokens, loss and gains": (statistics,),
        "the scalar ODE: rest, times, course, half of a drop": (scalars, 1e-9, "sixty halvings and a quadrature in the start"),
        "fixed points and their curvature": (saddles, 1e-9, "eigenvalues within 1e-9 of zero count as zero"),
    },
    "linear.merged": {
        "closed form, escape constant, minimum, growing mode": (drop, 1e-7, "the constant is integrated from a start of 1e-4")
    },
    "linear.blocks": {"features and their moments": (prompts,)},
}
