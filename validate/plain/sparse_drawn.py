r"""Sampled tasks of sparse regression, and what the laws say where they are not at their simplest: responses one by one, few tokens.

Labels are regressed on the exact ones, $y = x w + noise$: slope 1, mean squared rest sigma^2, both within five standard errors.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from spectral_ode.problem import Problem
from spectral_ode.systems.sparse import Depth, Law, _two_groups
from spectral_ode.systems.sparse.depth import State
from validate.plain.eigenvalue_law import mean_law
from validate.plain.numbers import ALGEBRA, Form
from validate.plain.sparse import task_of


def drawn(problem: Problem) -> dict[str, Form]:
    """Labels of many tasks; and tasks by their number, however many are drawn at once."""
    law, tasks = Law(6, 2, 50, 0.7), 400
    sample = eqx.filter_jit(lambda: law.samples(jax.random.key(3), tasks))()
    part = eqx.filter_jit(lambda: law.samples(jax.random.key(3), 3, first=5))()
    x, y, w = (np.asarray(leaf) for leaf in (sample.x, sample.y, sample.w))
    signal, count = np.einsum("tni,ti->tn", x, w), y.size
    rest = np.mean((y - signal) ** 2)
    return {
        "labels, slope": Form(np.sum(y * signal) / np.sum(signal**2), 1.0, 5 * law.sigma / np.sqrt(law.s * count)),
        "labels, noise": Form(rest, law.sigma**2, 5 * np.sqrt(2 / count)),
        "tasks by number": Form((part.x, part.y, part.w), (x[5:8], y[5:8], w[5:8]), ALGEBRA),
    }


def states(problem: Problem) -> dict[str, Form]:
    """A state of the reduced flow: its risk off the support, its decay, the responses in closed form, and few tokens."""
    system, tau, kept, phi = Depth.from_problem(problem), 4.0, 0.4, 0.2
    block = jax.tree.map(lambda leaf: leaf[0], system.blocks)
    gentle = replace(problem.sparse_training, learning_rate=1e-3)
    short = replace(problem, task=replace(task_of(problem), context=max(4, system.law.d // 2)), training=gentle, horizon=1.0)
    thin = Depth.from_problem(short)

    @eqx.filter_jit
    def look(system, thin, block):
        seen = []
        for one in (system, thin):
            modes = one.blocks.V.shape
            state = State(
                0.6 * jnp.ones(modes), jnp.full((modes[0], _two_groups.NODES, modes[1]), phi), kept * jnp.ones(one.spectrum[0].shape)
            )
            seen.append((one.observe(state), one.vector_field(jnp.zeros(()), state).decay[0]))
        return seen, _two_groups.response(block, jnp.asarray(tau))

    ((seen, decay), (few, _)), response = look(system, thin, block)
    rates, total, q = np.asarray(block.rates), float(np.sum(block.V)), np.asarray(_two_groups.nodes()[0])
    right = lambda rate: lambda t, f: q * total * (np.exp(-rate * t) - f)
    exact = [solve_ivp(right(rate), (0, tau), np.zeros(q.size), method="LSODA", rtol=1e-11, atol=1e-13).y[:, -1] for rate in rates]
    gamma = thin.law.d / thin.law.n
    power = np.mean(np.sum(np.asarray(thin.sample.w) ** 2, axis=1))
    noise = thin.law.sigma**2 * gamma * mean_law(lambda x: (1 - kept) ** 2 / x, gamma, atom=False)
    labels = np.mean(np.asarray(system.sample.y) ** 2) / system.law.n  # the variances of a task add up to this
    return {
        "risk off the support": Form(seen["groups"][1], (system.law.d - system.law.s) * phi**2 * labels, 1e-6),
        "decay of the modes": Form(decay, -0.6 * rates, ALGEBRA),
        "responses": Form(response, np.transpose(exact), 1e-8),
        "plain risk, few tokens": Form(few["plain"], power * (kept**2 / gamma + 1 - 1 / gamma) + noise, 1e-8),
    }
