r"""The closed forms of softmax attention, refereed from one function: the loss of some heads, to leading order.

    Loss_i = S_i { (1 - sum_h mu_i^h omega_i^h)^2 + (phi_i/L) sum_hg mu_i^h mu_i^g e^{kappa_hg} },  kappa_hg = sum_j d_j omega_j^h omega_j^g

Flows are derivatives of it along the entries of O, V, K, Q; limits are its stationary points, rates the eigenvalues there.
"""

import jax.numpy as jnp
import mpmath as mp
import numpy as np

from spectral_ode.systems.softmax import _leading, _optimal
from spectral_ode.systems.softmax._leading import Factors, Head, Spectrum, Tasks
from validate.formulas.averages import averages

D, S, SIGMA2, L, D_E = (4, 7, 5), (1.0, 1.3, 0.8), 0.3, 23, 15
MU, OMEGA = ((0.9, 0.4, 1.7), (1.2, 2.1, 0.3)), ((0.21, 0.11, 0.17), (0.05, 0.23, 0.13))  # two heads, three tasks
TASKS = lambda: Tasks(d=np.array(D, float), S=np.array(S), sigma2=SIGMA2, L=L, d_e=D_E)
ALL = range(len(D))


def _loss(mu, omega, i, d=D, S=S, length=L):
    """Loss_i from the eigenvalues of all heads (rows) and tasks."""
    phi, heads = 1 + mp.mpf(SIGMA2) / S[i], range(len(mu))
    kappa = [[mp.fsum(d[j] * omega[h][j] * omega[g][j] for j in range(len(d))) for g in heads] for h in heads]
    noise = mp.fsum(mu[h][i] * mu[g][i] * mp.exp(kappa[h][g]) for h in heads for g in heads)
    return S[i] * ((1 - mp.fsum(mu[h][i] * omega[h][i] for h in heads)) ** 2 + phi / length * noise)


def _alone(i):
    """The loss of one head for task i alone, a function of mu and omega."""
    return lambda mu, omega: _loss([[mu]], [[omega]], 0, (D[i],), (S[i],))


def _rates(function, mu, omega, i):
    """(ln mu)' and (ln omega)' of a balanced head under a loss: mu = v^2, omega = k^2/sqrt(d_e), with d entries k."""
    v, k = mp.sqrt(mu), mp.sqrt(omega * mp.sqrt(D_E))
    by_v = mp.diff(lambda o: function(o * v, omega), v)  # of one partner, the other one standing still
    by_k = mp.diff(lambda q: function(mu, k * q / mp.sqrt(D_E)), k) / D[i]
    return -2 * by_v / v, -2 * by_k / k


def _limit(i):
    """Where a head of task i comes to rest."""
    function = _alone(i)
    slope = lambda omega: mp.diff(lambda omega: function(_best_mu(function, omega), omega), omega)
    omega = mp.findroot(slope, mp.mpf("0.9") / mp.sqrt(D[i]))
    return _best_mu(function, omega), omega


def losses():
    """Losses of the tasks."""
    yield _leading.losses(Spectrum(jnp.asarray(MU), jnp.asarray(OMEGA)), TASKS()), [_loss(MU, OMEGA, i) for i in ALL]


def flows():
    """Factors with imbalances, and balanced heads in logarithms."""
    total = lambda o, v, k, q: mp.fsum(_loss(o * v, k * q / np.sqrt(mp.mpf(D_E)), i) for i in ALL)
    exact = lambda table: np.vectorize(mp.mpf)(np.asarray(table, dtype=object))
    factors = [exact(MU), exact(OMEGA) * 2, exact(MU)[::-1] - 1, exact(OMEGA) + 1]  # o, v, k, q: any four tables
    rows = []
    for number, table in enumerate(factors):
        rate = np.empty(table.shape, dtype=object)
        for place in np.ndindex(*table.shape):

            def moved(value, number=number, place=place):
                changed = [part.copy() for part in factors]
                changed[number][place] = value
                return total(*changed)

            rate[place] = -mp.diff(moved, table[place]) / (1 if number < 2 else D[place[1]])  # k, q: d equal entries each
        rows.append(rate)
    found = _leading.factors_field(Factors(*(jnp.asarray(part.astype(float)) for part in factors)), TASKS())
    yield from zip(found, rows, strict=True)
    mu, omega = exact(MU), exact(OMEGA)
    logs = _leading.balanced_field(Spectrum(jnp.log(jnp.asarray(MU)), jnp.log(jnp.asarray(OMEGA))), TASKS())
    by_mu = lambda h, i: -2 * mp.diff(lambda x: _sum(_set(mu, h, i, x), omega), mu[h, i])
    by_omega = lambda h, i: -2 * mp.diff(lambda x: _sum(mu, _set(omega, h, i, x)), omega[h, i]) / (D[i] * mp.sqrt(D_E))
    yield logs.mu, [[by_mu(h, i) for i in ALL] for h in (0, 1)]
    yield logs.omega, [[by_omega(h, i) for i in ALL] for h in (0, 1)]
    balanced = _leading.balanced(Spectrum(jnp.asarray(MU), jnp.asarray(OMEGA)), TASKS())
    yield balanced.spectrum(TASKS()).mu, MU
    yield balanced.spectrum(TASKS()).omega, OMEGA
    yield jnp.stack(Factors(*jnp.asarray([[3.0], [2.0], [7.0], [4.0]])).balances()), [[5], [33]]


def _set(table, h, i, value):
    changed = table.copy()
    changed[h, i] = value
    return changed


def _sum(mu, omega):
    return mp.fsum(_loss(mu, omega, i) for i in ALL)


def phases():
    """The equations of the phases: limits of the full flow, and the head of a task alone."""
    faint = mp.mpf(10) ** -12
    one = lambda i, h, table: faint * mp.mpf(table[h][i])
    small = Spectrum(jnp.log(float(faint) * jnp.asarray(MU)), jnp.log(float(faint) * jnp.asarray(OMEGA)))
    warm = _leading.warm_up_field(small, TASKS())
    for i in ALL:  # every head of a task, the others standing by
        pair = lambda h, mu, omega, i=i: _loss(
            [[mu if g == h else one(i, g, MU)] for g in (0, 1)],
            [[omega if g == h else one(i, g, OMEGA)] for g in (0, 1)],
            0,
            (D[i],),
            (S[i],),
        )
        found = [_rates(lambda mu, omega, h=h, pair=pair: pair(h, mu, omega), one(i, h, MU), one(i, h, OMEGA), i) for h in (0, 1)]
        yield warm.mu[:, i], [rate[0] for rate in found]
        yield warm.omega[:, i], [rate[1] for rate in found]
    mu, omega = [mp.mpf(x) for x in MU[0]], [mp.mpf(x) for x in OMEGA[0]]
    head = Head(jnp.log(jnp.asarray(MU[0])), jnp.log(jnp.asarray(OMEGA[0])))
    found = [_rates(_alone(i), mu[i], omega[i], i) for i in ALL]
    yield jnp.stack(_leading.emergence_field(head, TASKS())), np.array(found).T
    best = [_best_mu(_alone(i), omega[i]) for i in ALL]
    yield _leading.slaved(jnp.asarray(OMEGA[0]), TASKS()), best
    slaved = lambda i, w: w * _rates(_alone(i), _best_mu(_alone(i), w), w, i)[1]
    yield _leading.slaved_field(jnp.asarray(OMEGA[0]), TASKS()), [slaved(i, omega[i]) for i in ALL]
    yield _leading.slaved_rate(TASKS()), [-mp.diff(lambda w, i=i: slaved(i, w), 1 / mp.sqrt(D[i]), h=mp.mpf("1e-8")) for i in ALL]


def _best_mu(function, omega):
    """The bottom of a parabola in mu."""
    down, here, up = (function(mp.mpf(x), omega) for x in (-1, 0, 1))
    return (down - up) / (2 * (down - 2 * here + up))


def limits():
    """Where one head per task ends, how fast it gets there, and how it is left."""
    rest = [_limit(i) for i in ALL]
    found = _optimal.limit(TASKS())
    yield jnp.stack([found.mu, found.omega]), np.array(rest).T
    yield found.loss, [_alone(i)(*rest[i]) for i in ALL]
    shared = _optimal.limit(TASKS(), sharing=2)  # two tasks like i on one head: of each, half of the score's variance
    twice = lambda i: lambda mu, omega: _loss([[mu, mu]], [[omega, omega]], 0, (D[i], D[i]), (S[i], S[i]))
    for i in ALL:
        at = (mp.mpf(float(shared.mu[i])), mp.mpf(float(shared.omega[i])))
        yield 1 + mp.diff(twice(i), at, (1, 0)) + mp.diff(twice(i), at, (0, 1)), 1
        yield shared.loss[i], twice(i)(*at)
    rates = [_eigenvalues(i, *rest[i]) for i in ALL]
    yield jnp.stack(_leading.convergence_rates(TASKS())), np.array(rates).T
    idle = lambda i, mu: _loss([[rest[i][0]], [mu]], [[rest[i][1]], [mp.mpf(0)]], 0, (D[i],), (S[i],))
    yield _optimal.escape_rate(TASKS()), [mp.diff(lambda mu, i=i: idle(i, mu), 0) for i in ALL]
    longer = lambda i: _loss([[rest[i][0]]], [[rest[i][1]]], 0, (D[i],), (S[i],), length=71)
    yield _optimal.other_length(TASKS(), 71), [longer(i) for i in ALL]
    gauss = lambda z: mp.exp(-(z**2) / 2) / mp.sqrt(2 * mp.pi)
    cubic = lambda i: mp.quad(lambda z: ((z + rest[i][1]) ** 3 - 3 * (z + rest[i][1])) * gauss(z), [-12, 0, 12])
    yield _optimal.hermite_transfer(3, found), [rest[i][0] * cubic(i) for i in ALL]


def _eigenvalues(i, mu, omega):
    """Slow and fast rate at rest, from the derivatives of the flow in logarithms."""
    logs = lambda a, b, which: _rates(_alone(i), mp.exp(a), mp.exp(b), i)[which]
    at = (mp.log(mu), mp.log(omega))
    jacobian = mp.matrix([[mp.diff(lambda a, b, row=row: logs(a, b, row), at, n) for n in ((1, 0), (0, 1))] for row in (0, 1)])
    return sorted(-mp.re(value) for value in mp.eig(jacobian, left=False, right=False))


def heads():
    """The best single head, what several heads can share, and signed pairs."""
    dry = [(1 + mp.mpf(SIGMA2) / S[i]) * D[i] / L for i in ALL]  # 1/a
    for M in (mp.exp(-1), mp.mpf("0.02")):
        left = lambda level, M=M: mp.fsum(max(level * mp.sqrt(S[i] * dry[i]) - dry[i], 0) for i in ALL) - M
        level = mp.findroot(left, (mp.mpf("0.01"), mp.mpf(40)), solver="anderson", tol=1e-50, maxsteps=400, verify=False)
        shares = [max(level * mp.sqrt(S[i] * dry[i]) - dry[i], 0) for i in ALL]
        yield _optimal.fill(float(M), TASKS()), shares
    one = _optimal.one_head(TASKS())
    mu, omega = ([mp.mpf(float(x)) for x in part] for part in (one.mu, one.omega))
    yield one.loss, [_loss([mu], [omega], i) for i in ALL]
    slope = lambda at, which: mp.diff(lambda x: _sum(np.array([mu]), _set(np.array([omega]), 0, which, x)), at)
    yield [1 + slope(omega[i], i) for i in ALL], [1] * 3
    E, kappa = mp.matrix([[mp.exp(1.1), mp.exp(0.3)], [mp.exp(0.3), mp.exp(0.9)]]), mp.matrix([[1.1, 0.3], [0.3, 0.9]])
    product = kappa * E**-1
    yield _optimal.budget(jnp.asarray([[1.1, 0.3], [0.3, 0.9]])), product[0, 0] + product[1, 1]
    alike = mp.matrix(4, 4)
    for h in range(4):
        for g in range(4):
            alike[h, g] = mp.mpf("1.3") if h == g else mp.mpf("-0.4")
    inverse = alike.apply(mp.exp) ** -1
    yield _optimal.equiangular_budget(1.3, -0.4, heads=4), mp.fsum((alike * inverse)[h, h] for h in range(4))
    best = mp.findroot(lambda B: mp.diff(lambda x: x * mp.exp(-x), B), mp.mpf("0.9"))
    yield _optimal.best_budget(1, 3), best * mp.exp(-best)
    close = alike.apply(lambda x: mp.mpf(10) ** -12 * (4 if x > 0 else -1))  # omegas near zero that sum up to zero
    square = (close * (close.apply(mp.exp)) ** -1)[0, 0]
    yield _optimal.best_budget(4, 9), mp.nint(4 * square)
    omega = mp.mpf("0.2")
    for i in ALL:
        pair = lambda mu, omega, i=i: _loss([[mu], [-mu]], [[omega], [-omega]], 0, (D[i],), (S[i],))
        yield _optimal.signed_pair(D[i] * 0.04, TASKS())[i], pair(_best_mu(pair, omega), omega)
        yield _optimal.linear_attention(TASKS())[i], pair(_best_mu(pair, mp.mpf(10) ** -5), mp.mpf(10) ** -5)
    taken, lost = _optimal.allocation_limit(jnp.asarray([1, 0, 1]), TASKS(), heads=2)
    yield (
        lost,
        [
            _loss([[mp.mpf(float(x)) for x in row] for row in taken.mu], [[mp.mpf(float(x)) for x in row] for row in taken.omega], i)
            for i in ALL
        ],
    )


def emergence():
    """Times at which heads blow up in the warm-up, and the regime of the exponential."""
    start = Spectrum(jnp.asarray(MU) / 50, jnp.asarray(OMEGA) / 50)

    def time(h, i):  # 1/omega as the clock's measure: with x = mu/omega, x' and omega' of a head alone
        phi, drag = 1 + mp.mpf(SIGMA2) / S[i], D[i] * mp.sqrt(D_E)
        p = 1 / (1 + phi * drag / L)
        rho = mp.mpf(MU[h][i]) / mp.mpf(OMEGA[h][i]) / (p * drag)
        return mp.quad(lambda u: mp.exp(-p * u) / (1 - (1 - rho) * mp.exp(-u)), [0, 1, 10, mp.inf]) / (4 * S[i] * mp.mpf(OMEGA[h][i]) / 50)

    yield _optimal.emergence_times(start, TASKS()), [[time(h, i) for i in ALL] for h in (0, 1)]
    yield _optimal.exponential(0.7, L), mp.exp(mp.mpf("0.7")) ** 2 / mp.exp(mp.mpf("0.35")) ** 2 / L
    yield _optimal.saturation(L), mp.findroot(lambda v: mp.sqrt(2 * v * mp.log(L)) - 2 * v, 2)


FORMULAS = {
    "softmax.balanced": {
        "leading-order losses": (losses,),
        "flows of factors and of balanced heads": (flows,),
        "equations of warm-up and emergence": (phases, 1e-7, "the warm-up is a limit, taken at 1e-12"),
        "limit, rates, escape, other lengths, Hermite transfer": (limits, 1e-10, "derivatives at the rounded limit"),
        "water filling, budgets of heads, signed pairs": (heads, 1e-9, "slopes at rounded optima"),
        "emergence times": (emergence,),
        "averages at finite L": (
            averages,
            2e-6,
            "tables are good to 1e-6 of a loss; plain double quadrature with other nodes in place of mpmath",
        ),
    }
}
