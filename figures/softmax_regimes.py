"""Ours, on arXiv:2402.19442: where the leading order of softmax attention holds, what it becomes at small weights, what it cannot read.

a  E sum_l p_l^2 of the softmax of L scores N(0, v), exact, against e^v / L, up to the point of saturation v = ln(L) / 2
b  two heads (mu, omega) and (-mu, -omega) with the best mu, exact at finite L and to leading order, down to linear attention, k -> 0
c  labels He_k of one coordinate, read by a head that was trained on linear tasks: the share that its prediction keeps
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.polynomial import hermite_e
from scipy.special import factorial, ndtri

from figures import panels, style
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _optimal
from spectral_ode.systems.softmax._expectations import expectations
from spectral_ode.systems.softmax._leading import Spectrum, Tasks
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, ours"
SECONDS = (8, 8)
LENGTHS, DIMENSION = (30, 100, 1000), 10
NODES = 8  # of the query norm: good to 1e-7 of the loss, and within the tables up to k = 2.7
DEGREES, DIMENSIONS = (1, 2, 3, 4), (5, 10, 30)
TOKENS, QUERIES, CONTEXTS = 10_000, 1000, 50  # of the Monte Carlo of panel c
CAPTION = (
    "Where leading order in 1/L holds for softmax attention. (a) Concentration of the softmax of L scores of variance v: exponential, "
    "e^v/L, up to about v = ln(L)/2, then it saturates. (b) Two heads of opposite signs with the best mu, d = 10: as k = d omega^2 "
    "falls, leading order becomes linear attention, d/(L + d) of the signal, and the exact loss (d + 1)/(L + d), one step of "
    "gradient descent on centered data. (c) Share of a label He_k that a head keeps which was trained on linear tasks: mu omega^k, "
    "falling as d^{-(k-1)/2}; points: Monte Carlo at L = 10,000 with standard errors."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is computed but expectations and a Monte Carlo of its own."""
    return {}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Three panels."""
    with plt.style.context(style.STYLE):
        figure, (left, middle, right) = style.grid(width, 1, 3, height=2.9)
        _concentration(left)
        _pairs(middle)
        _transfer(right)
    return figure


def task(d: int, L: int) -> Tasks:
    """One task without noise, in units of its signal."""
    return Tasks(d=[d], S=[1.0], sigma2=0.0, L=L, d_e=1.0)


def pair(k: Float[Array, ""], L: int) -> Float[Array, ""]:
    """Exact loss of heads (mu, omega) and (-mu, -omega) at d omega^2 = k with the best mu."""
    omega = jnp.sqrt(k / DIMENSION)

    def at(reach: float) -> Array:  # mu omega on each of the two heads
        spectrum = Spectrum(jnp.stack([reach / omega, -reach / omega])[:, None], jnp.stack([omega, -omega])[:, None])
        return expectations(L).loss(spectrum, (DIMENSION,), jnp.ones(1), jnp.zeros(()), queries=NODES)[0]

    more, less = at(0.5), at(-0.5)  # a parabola in mu, 1 at mu = 0
    return 1 - (less - more) ** 2 / (8 * (more + less - 2))


def kept(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Share of He_k that the predictions keep, by Monte Carlo over contexts and queries, with its standard error; trained at L = TOKENS."""
    head, rng = _optimal.limit(task(d, TOKENS)), np.random.default_rng(d)
    basis = lambda x: np.stack([hermite_e.hermeval(x, np.eye(max(DEGREES) + 1)[k]) for k in DEGREES], axis=-1)
    shares = []
    for _ in range(CONTEXTS):
        x, q = (rng.normal(size=(count, d)).astype(np.float32) for count in (TOKENS, QUERIES))
        q[:, 0] = ndtri((np.arange(QUERIES) + rng.uniform(size=QUERIES)) / QUERIES)  # stratified: unbiased, and few queries will do
        p = np.exp(np.float32(head.omega[0]) * (q @ x.T))
        predicted = float(head.mu[0]) * (p @ basis(x[:, 0]).astype(np.float32)) / np.sum(p, axis=1, keepdims=True)
        shares.append(np.mean(predicted * basis(q[:, 0]), axis=0) / factorial(DEGREES))
    return np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1) / np.sqrt(CONTEXTS)


def _concentration(axes: Axes) -> None:
    v = np.linspace(0, 8, 161)
    for index, L in enumerate(LENGTHS):
        end = float(_optimal.saturation(L))
        axes.plot(v, expectations(L).concentration(jnp.asarray(v)), color=style.color(index), label=f"$L = {L}$")
        axes.plot(v, _optimal.exponential(jnp.asarray(v), L), color=style.color(index), linewidth=0.8, linestyle=(0, (4, 2)))
        axes.plot([end], expectations(L).concentration(jnp.asarray([end])), "o", color=style.color(index), markersize=4.5)
    axes.plot([], [], label="$e^v/L$", **panels.DASHED)
    axes.plot([], [], "o", color=style.INK, markersize=4.5, label=r"$v = \ln(L)/2$")
    axes.set(xlim=(0, 8), ylim=(7e-4, 2), yscale="log")
    axes.set(xlabel="variance $v$ of the scores", ylabel=r"concentration $\mathrm{E}\,|p|^2$")
    axes.legend(loc="lower right")
    panels.title(axes, "a", "saturation")


def _pairs(axes: Axes) -> None:
    k = np.geomspace(1e-2, 2.5, 41)
    for index, L in enumerate(LENGTHS):
        ink, tasks = style.color(index), task(DIMENSION, L)
        linear = float(_optimal.linear_attention(tasks)[0])
        axes.plot(k, np.asarray(jax.jit(jax.vmap(lambda k, L=L: pair(k, L)))(jnp.asarray(k))) / linear, color=ink, label=f"$L = {L}$")
        leading = np.asarray([float(_optimal.signed_pair(each, tasks)[0]) for each in k])
        axes.plot(k, leading / linear, color=ink, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.plot([], [], label="leading order", **panels.DASHED)
    axes.annotate("linear attention", (k[0], 1), xytext=(3, -9), textcoords="offset points", fontsize=style.SMALL)
    axes.annotate("exact: $1 + 1/d$", (k[0], 1 + 1 / DIMENSION), xytext=(3, 4), textcoords="offset points", fontsize=style.SMALL)
    axes.set(xlim=(k[0], k[-1]), ylim=(0.9, 2.0), xscale="log", xlabel=r"$k = d\,\bar\omega^2$", ylabel="loss / loss of linear attention")
    axes.legend(loc="upper left")
    panels.title(axes, "b", "heads of opposite signs")


def _transfer(axes: Axes) -> None:
    for index, d in enumerate(DIMENSIONS):
        head = _optimal.limit(task(d, TOKENS))
        share, error = kept(d)
        axes.plot(
            DEGREES, [float(_optimal.hermite_transfer(k, head)[0]) for k in DEGREES], color=style.color(3 + index), label=f"$d = {d}$"
        )
        axes.errorbar(DEGREES, share, error, fmt="o", color=style.color(3 + index), markersize=4, elinewidth=1)
    axes.errorbar([], [], [], fmt="o", color=style.INK, markersize=4, elinewidth=1, label="Monte Carlo")
    axes.set(xticks=DEGREES, ylim=(1.5e-3, 2), yscale="log", xlabel="Hermite degree of the target", ylabel="share kept")
    axes.legend(loc="lower left")
    panels.title(axes, "c", "nonlinear targets")
