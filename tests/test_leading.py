"""The leading-order flows of softmax attention: gradients, full matrices, conserved numbers, phases, times measured before."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from close import assert_close

from spectral_ode.systems.softmax import _leading, _optimal
from spectral_ode.systems.softmax._leading import Factors, Head, Spectrum, Tasks

FIGURE_1 = Tasks([10.0] * 3, [10.0] * 3, 0.0, 100.0, 33.0)
FIGURE_3 = Tasks([10.0], [10.0], 0.0, 100.0, 30.0)
UNEQUAL = Tasks([2.0, 3.0], [1.3, 0.6], 0.4, 20.0, 9.0)


def _signed(shape: tuple[int, int], seed: int) -> Spectrum:
    rng = np.random.default_rng(seed)
    return Spectrum(jnp.asarray(rng.normal(size=shape)), jnp.asarray(0.4 * rng.normal(size=shape)))


def _random_factors(heads: int, tasks: int, seed: int) -> Factors:
    return Factors(*jnp.asarray(np.random.default_rng(seed).normal(size=(4, heads, tasks))))


def _code_start(scale: float, prefers: list[int], heads: int, tasks: Tasks = FIGURE_1) -> Spectrum:
    """The start of the authors' code, K = Q and O = V^T, with factors `scale` times theirs; task i prefers head prefers[i]."""
    unit = scale**2 * tasks.L**-1.5
    preferred = jnp.arange(heads)[:, None] == jnp.asarray(prefers)[None]
    return Spectrum(unit * jnp.where(preferred, 4.0, 1.0), jnp.full(preferred.shape, unit / jnp.sqrt(tasks.d_e)))


def _solve(field, start, tasks: Tasks, end: float, *, rtol: float = 1e-9, saveat=None, solver=None):
    term = diffrax.ODETerm(lambda t, y, tasks: field(y, tasks))
    control = diffrax.PIDController(rtol=rtol, atol=rtol)
    saveat = diffrax.SaveAt(t1=True) if saveat is None else saveat
    return diffrax.diffeqsolve(
        term, solver or diffrax.Kvaerno5(), 0.0, end, None, start, tasks, stepsize_controller=control, saveat=saveat, max_steps=100_000
    )


def _logs(start):
    return jax.tree.map(jnp.log, start)


def _last(solution):
    return jax.tree.map(lambda leaf: leaf[-1], solution.ys)


@pytest.mark.parametrize("seed", range(3))
def test_the_pull_is_minus_the_gradient(seed):
    spectrum = _signed((3, 2), seed)
    for ours, gradient in zip(_leading.pull(spectrum, UNEQUAL), jax.grad(_leading.loss)(spectrum, UNEQUAL), strict=True):
        assert_close(ours, -gradient, rtol=1e-12)


def test_the_loss_written_out():
    (mu, omega), tasks = _signed((3, 2), 5), UNEQUAL
    expected = np.zeros(2)
    for i in range(2):
        expected[i] = 1 - 2 * float(mu[:, i] @ omega[:, i])
        for h in range(3):
            for g in range(3):
                k = sum(float(tasks.d[j] * omega[h, j] * omega[g, j]) for j in range(2))
                expected[i] += float(mu[h, i] * mu[g, i] * (omega[h, i] * omega[g, i] + tasks.phi[i] / tasks.L * np.exp(k)))
    assert_close(_leading.losses(Spectrum(mu, omega), tasks) / tasks.S, expected)
    assert_close(tasks.phi, [1 + 0.4 / 1.3, 1 + 0.4 / 0.6])


def _block(tasks: Tasks) -> np.ndarray:
    """The task of each coordinate."""
    return np.repeat(np.arange(tasks.d.size), np.asarray(tasks.d, int))


def _matrix_loss(matrices, tasks: Tasks):
    """The leading order for any matrices O, V, K, Q of every head, with kappa_hg = tr W_h^T W_g."""
    O, V, K, Q = matrices
    U = jnp.einsum("hie,hej->hij", O, V)
    W = jnp.einsum("hec,hed->hcd", K, Q) / jnp.sqrt(tasks.d_e)
    block = _block(tasks)
    per_coordinate = (tasks.S / tasks.d)[block]
    readout = jnp.einsum("gai,hai->hgi", U, U)  # (U_g^T U_h)_ii
    spread = jnp.einsum("hcd,gcd->hgc", W, W)  # (W_h W_g^T)_cc
    cross = jnp.einsum("hcc,hcc,c->", W, U[:, block][:, :, block], per_coordinate)
    signal = jnp.einsum("hgc,hgc,c->", spread, readout[:, :, block], per_coordinate)
    noise = jnp.einsum("hg,hgi,i->", jnp.exp(jnp.sum(spread, axis=-1)), readout, tasks.S * tasks.phi / tasks.L)
    return jnp.sum(tasks.S) - 2 * cross + signal + noise


def _embed(factors: Factors, tasks: Tasks, frames):
    block = _block(tasks)
    inner, outer = frames  # orthonormal columns: heads x d_e x d and heads x d_e x tasks
    O, V = jnp.swapaxes(outer * factors.o[:, None], 1, 2), outer * factors.v[:, None]
    return O, V, inner * factors.k[:, None, block], inner * factors.q[:, None, block]


def test_the_factors_flow_as_full_matrices_do():
    tasks, factors = UNEQUAL, _random_factors(3, 2, 0)
    rng = np.random.default_rng(1)
    frames = tuple(jnp.asarray(np.linalg.qr(rng.normal(size=(3, 9, width)))[0]) for width in (5, 2))
    matrices = _embed(factors, tasks, frames)
    assert_close(_matrix_loss(matrices, tasks), _leading.loss(factors.spectrum(tasks), tasks))
    flow = jax.tree.map(jnp.negative, jax.grad(_matrix_loss)(matrices, tasks))
    # The whole gradient lies in the decomposable set, and d_i equal entries move like one number.
    for ours, full in zip(_embed(_leading.factors_field(factors, tasks), tasks, frames), flow, strict=True):
        assert_close(ours, full, rtol=1e-11, atol=1e-12)


def test_balanced_factors_flow_as_the_logarithms_do():
    spectrum = jax.tree.map(jnp.abs, _signed((3, 2), 2))
    factors = _leading.balanced(spectrum, UNEQUAL)
    field = _leading.factors_field(factors, UNEQUAL)
    logs = _leading.balanced_field(_logs(spectrum), UNEQUAL)
    assert_close(field.o / factors.o + field.v / factors.v, logs.mu)
    assert_close(field.k / factors.k + field.q / factors.q, logs.omega)


def test_balances_are_conserved_along_a_solve():
    start = jax.tree.map(lambda leaf: 0.3 * leaf, _random_factors(3, 2, 4))
    solution = _solve(_leading.factors_field, start, UNEQUAL, 200.0, rtol=1e-10, solver=diffrax.Dopri8())
    end = _last(solution)
    before, after = _leading.loss(start.spectrum(UNEQUAL), UNEQUAL), _leading.loss(end.spectrum(UNEQUAL), UNEQUAL)
    assert after < 0.7 * before
    for first, last in zip(start.balances(), end.balances(), strict=True):
        assert_close(last, first, rtol=0, atol=1e-8)  # 10 x rtol x scale of the accumulated weights


def test_the_balanced_flow_of_figure_1_reaches_its_limit_and_stays():
    start = _logs(_code_start(4.0, [0, 1, 2], 3))
    times = jnp.asarray([0.0, 2000.0, 1e6])  # omega of the other tasks fades only like 1/t
    solution = jax.jit(lambda: _solve(_leading.balanced_field, start, FIGURE_1, 1e6, saveat=diffrax.SaveAt(ts=times)))()
    course = [Spectrum(jnp.exp(solution.ys.mu[n]), jnp.exp(solution.ys.omega[n])) for n in range(3)]
    assert_close(_leading.losses(course[1], FIGURE_1) / 10, 0.2137308, rtol=0, atol=2e-7)
    end, best = course[2], _optimal.limit(FIGURE_1)
    assert_close(jnp.diag(end.mu), best.mu, rtol=1e-8)
    assert_close(jnp.diag(end.omega), best.omega, rtol=1e-8)
    assert_close(_leading.losses(end, FIGURE_1), best.loss, rtol=1e-8)
    assert_close(best.omega[0], 0.31623, rtol=0, atol=5e-6)
    assert_close(best.mu[0], 2.4864, rtol=0, atol=5e-5)
    assert_close(best.loss[0] / 10, 0.21373, rtol=0, atol=5e-6)
    assert jnp.max(end.mu - jnp.diag(jnp.diag(end.mu))) < 1e-37


@pytest.mark.parametrize(("scale", "half"), [(1.0, 285.75), (2.0, 71.3), (4.0, 17.66)])
def test_the_loss_of_figure_1_falls_half_way_when_it_was_measured_to(scale, half):
    start = _logs(_code_start(scale, [0, 1, 2], 3))
    middle = 15 * (1 + 0.2137303)

    def reached(t, y, args, **_):
        return _leading.loss(Spectrum(jnp.exp(y.mu), jnp.exp(y.omega)), args) - middle

    root = diffrax.Event(reached, root_finder=optimistix.Newton(1e-8, 1e-8))
    term = diffrax.ODETerm(lambda t, y, tasks: _leading.balanced_field(y, tasks))
    control = diffrax.PIDController(rtol=1e-8, atol=1e-8)
    solution = diffrax.diffeqsolve(
        term, diffrax.Tsit5(), 0.0, 1.2 * half, None, start, FIGURE_1, stepsize_controller=control, event=root, max_steps=100_000
    )
    assert solution.ts is not None
    assert_close(solution.ts[-1], half, rtol=1e-3)  # they were noted with three or four digits


def test_an_imbalance_leaves_the_saddle_at_the_predicted_rate():
    best = _optimal.limit(FIGURE_1)
    at_limit = _leading.balanced(Spectrum(jnp.diag(best.mu), jnp.diag(best.omega)), FIGURE_1)
    off, small = 1 - jnp.eye(3), 1e-9
    shifted = at_limit._replace(o=at_limit.o + small * off, v=at_limit.v - small * off)
    field = _leading.factors_field(shifted, FIGURE_1)
    rate = (field.o - field.v)[0, 1] / (2 * small)
    assert_close(rate, 2 * 10 / 100 * best.mu[0], rtol=1e-6)  # linear in `small`
    assert_close(rate, 0.497, rtol=0, atol=5e-4)


def test_an_imbalance_ends_in_heads_of_both_signs():
    start = _leading.balanced(_code_start(4.0, [0, 1, 2], 3), FIGURE_1)
    start = start._replace(o=start.o * 1.001)
    end = _last(jax.jit(lambda: _solve(_leading.factors_field, start, FIGURE_1, 300.0, solver=diffrax.Tsit5(), rtol=1e-7))()).spectrum(
        FIGURE_1
    )
    loss = float(_leading.loss(end, FIGURE_1)) / 30
    assert float(jnp.sum(_optimal.lower_bound(3, FIGURE_1))) / 30 < loss < 0.135
    assert float(jnp.min(end.mu)) < -5


def test_figure_3_as_measured():
    """Two variables and one, from (omega, mu) = (.01, 1) at t = 4."""
    times = jnp.linspace(0.0, 60.0, 60_001)
    save = diffrax.SaveAt(ts=times)
    start = Head(jnp.log(jnp.asarray([1.0])), jnp.log(jnp.asarray([0.01])))
    two = _solve(_leading.emergence_field, start, FIGURE_3, 60.0, saveat=save, solver=diffrax.Tsit5())
    mu, omega = jnp.exp(two.ys.mu[:, 0]), jnp.exp(two.ys.omega[:, 0])
    one = _solve(_leading.slaved_field, jnp.asarray([0.01]), FIGURE_3, 60.0, saveat=save, solver=diffrax.Tsit5()).ys[:, 0]
    assert_close(4 + jnp.interp(jnp.asarray(0.15), omega, times), 6.628, rtol=0, atol=1e-3)
    assert_close(jnp.max(mu), 4.217, rtol=0, atol=1e-3)
    assert_close(4 + jnp.interp(jnp.asarray(0.15), one, times), 5.896, rtol=0, atol=1e-3)
    speed = jax.vmap(lambda w: _leading.slaved_field(w[None], FIGURE_3)[0])(one)
    assert_close(jnp.asarray([jnp.max(speed), one[jnp.argmax(speed)]]), [0.165, 0.094], rtol=0, atol=1e-3)
    best = _optimal.limit(FIGURE_3)
    assert_close([mu[-1], omega[-1], one[-1]], [best.mu[0], best.omega[0], best.omega[0]], rtol=1e-8)


@pytest.mark.parametrize("tasks", [FIGURE_1, UNEQUAL], ids=["figure 1", "unequal"])
def test_rates_of_convergence_are_those_of_the_jacobian(tasks):
    best = _optimal.limit(tasks)
    slow, fast = _leading.convergence_rates(tasks)
    for i in range(tasks.d.size):
        alone = Tasks(tasks.d[i : i + 1], tasks.S[i : i + 1], tasks.sigma2, tasks.L, tasks.d_e)
        field = lambda y, alone=alone: jnp.concatenate(_leading.emergence_field(Head(y[:1], y[1:]), alone))
        at = jnp.log(jnp.asarray([best.mu[i], best.omega[i]]))
        assert_close(field(at), [0.0, 0.0], atol=1e-12)
        rates = np.sort(-np.linalg.eigvals(np.asarray(jax.jacobian(field)(at))).real)
        assert_close([slow[i], fast[i]], rates, rtol=1e-9)
        one = lambda w, alone=alone: _leading.slaved_field(w[None], alone)[0]
        assert_close(_leading.slaved_rate(tasks)[i], -jax.grad(one)(best.omega[i]), rtol=1e-9)
    assert jnp.all(slow < _leading.slaved_rate(tasks))


def test_rates_of_figure_1_as_measured():
    slow, fast = _leading.convergence_rates(FIGURE_1)
    assert_close([slow[0], fast[0]], [0.647, 14.47], rtol=0, atol=4e-3)
    assert_close(slow[0] / _leading.slaved_rate(FIGURE_1)[0], 1 - 0.13, rtol=0, atol=5e-3)


def test_emergence_is_the_flow_of_a_head_alone_and_slaving_puts_mu_at_rest():
    alone = Tasks([7.0], [2.0], 0.5, 60.0, 12.0)
    logs = Head(jnp.asarray([0.3]), jnp.asarray([-1.7]))
    whole = _leading.balanced_field(Spectrum(logs.mu[None], logs.omega[None]), alone)
    for ours, full in zip(_leading.emergence_field(logs, alone), whole, strict=True):
        assert_close(ours, full[0])
    omega = jnp.exp(logs.omega)
    at_rest = _leading.emergence_field(Head(jnp.log(_leading.slaved(omega, alone)), logs.omega), alone)
    assert_close(at_rest.mu, [0.0])
    assert_close(omega * at_rest.omega, _leading.slaved_field(omega, alone))


def test_warm_up_is_the_flow_of_small_weights():
    start = jax.tree.map(jnp.abs, _signed((3, 2), 7))

    def gap(size: float):
        logs = _logs(jax.tree.map(lambda leaf: size * leaf, start))
        return jnp.concatenate(
            [jnp.abs(a - b) for a, b in zip(_leading.balanced_field(logs, UNEQUAL), _leading.warm_up_field(logs, UNEQUAL), strict=True)]
        )

    assert_close(gap(2e-3) / gap(1e-3), jnp.full((6, 2), 8.0), rtol=1e-3)  # third order, where the fields are of the first


def test_everything_batches_and_differentiates():
    """The loss after a while, batched over starts, and its derivative by the context length."""
    starts = jax.tree.map(lambda leaf: jnp.log(jnp.stack([leaf, 1.5 * leaf])), _code_start(8.0, [0, 1], 2, UNEQUAL))

    def after(L, start):
        tasks = Tasks(UNEQUAL.d, UNEQUAL.S, UNEQUAL.sigma2, L, UNEQUAL.d_e)
        y = _last(_solve(_leading.balanced_field, start, tasks, 5.0, rtol=1e-10, solver=diffrax.Tsit5()))
        return _leading.loss(Spectrum(jnp.exp(y.mu), jnp.exp(y.omega)), tasks)

    batched = jax.jit(jax.vmap(jax.value_and_grad(after), in_axes=(None, 0)))
    value, slope = batched(jnp.asarray(20.0), starts)
    up, down = (batched(jnp.asarray(20.0 + step), starts)[0] for step in (1e-3, -1e-3))
    assert abs(value[1] - value[0]) > 1e-3
    assert_close(slope, (up - down) / 2e-3, rtol=1e-5)  # of the difference quotient
