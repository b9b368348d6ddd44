r"""Softmax attention to leading order in 1/L: the loss, its flows, and the equations of the three phases.

Paper: arXiv:2402.19442 (its text was not at hand: the equations are derived here, in its symbols, and agree with what its captions
state). $I$ tasks: task $i$ lives in $d_i$ coordinates $x ~ N(0, 1)$ of every token, its label is $y_i = g_i.x_i$ plus noise of variance
$sigma^2$ and its signal is $S_i = E (g_i.q_i)^2$; $phi_i = 1 + sigma^2/S_i$. $L$ pairs in context, $H$ heads of embedding $d_e$, no mask.
Decomposable weights: $omega_i^h$ (the paper's omega-bar) is the eigenvalue of $K^T Q / sqrt(d_e)$ on block $i$, $mu_i^h$ that of $O V$ on
task $i$. Then, for $e^{kappa} << L$ and large $d_i$ (the fluctuation of $|q_i|^2$ costs $O(1/d_i)$),

    kappa_hg = sum_j d_j omega_j^h omega_j^g
    Loss_i = S_i { (1 - sum_h mu_i^h omega_i^h)^2 + (phi_i/L) sum_hg mu_i^h mu_i^g e^{kappa_hg} },      Loss = sum_i Loss_i

(no 1/2, no mean over tasks). With the factors $mu = o v$, $omega = k q / sqrt(d_e)$, where $k$ and $q$ stand for $d_i$ equal entries each,
gradient flow on $O$, $V$, $K$, $Q$ is

    o' = -v dLoss/dmu,  v' = -o dLoss/dmu
    k' = -q dLoss/domega / (d_i sqrt(d_e)),  q' = -k dLoss/domega / (d_i sqrt(d_e))
    conserved: o^2 - v^2  and  k^2 - q^2

and the balanced, positive one ($o = v$, $k = q$) is, in logarithms,

    (ln mu)' = -2 dLoss/dmu,      (ln omega)' = -(2 / (d_i sqrt(d_e))) dLoss/domega

The second is to be integrated in $(ln mu, ln omega)$: a solver of the four factors loses $o = v$ to rounding and leaves the saddle (ours).

Phases of the head of a task alone, $x = e d phi/L$. Warm-up ($omega$, $mu omega$ and $kappa$ small; sums over the heads of one task):

    mu' = 4 S mu (omega - (phi/L) sum_g mu^g),      omega' = 4 (S/d) d_e^{-1/2} omega mu

Emergence, $E = (phi/L) e^{d omega^2}$: $mu$ and $omega$,

    mu' = 4 S mu [omega - mu (omega^2 + E)],       omega' = 4 (S/d) d_e^{-1/2} omega mu [1 - mu omega (1 + d E)]

or $omega$ alone with $mu$ slaved to it:

    mu = omega / (omega^2 + E),           omega' = 4 (S/d) d_e^{-1/2} E omega^2 (1 - d omega^2) / (omega^2 + E)^2

Convergence: the rates at the limit are the eigenvalues of a matrix; slaved, the one rate is $2 y Q$.

    [[P, P], [Q, Q (1 + 2y)]],    P = 4 S d^{-1/2},  Q = 4 (S/d) d_e^{-1/2} mu*,  y = x/(1 + x)
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


def _number(value) -> Array:
    return jnp.asarray(value, float)


class Tasks(eqx.Module):
    """What the leading order knows about the sequences and the heads."""

    d: Float[Array, " tasks"] = eqx.field(converter=_number)
    S: Float[Array, " tasks"] = eqx.field(converter=_number)
    sigma2: Float[Array, ""] = eqx.field(converter=_number)  # variance of the noise of the labels
    L: Float[Array, ""] = eqx.field(converter=_number)
    d_e: Float[Array, ""] = eqx.field(converter=_number)

    @property
    def phi(self) -> Float[Array, " tasks"]:
        """1 + 1/SNR."""
        return 1 + self.sigma2 / self.S

    @property
    def x(self) -> Float[Array, " tasks"]:
        """Noise of the attended labels over their signal at the limit, e d phi/L."""
        return jnp.e * self.d * self.phi / self.L

    @property
    def speed(self) -> Float[Array, " tasks"]:
        """4 (S/d) d_e^{-1/2}, the rate of ln omega at mu = 1."""
        return 4 * self.S / (self.d * jnp.sqrt(self.d_e))


class Spectrum(NamedTuple):
    """Eigenvalues of the heads, one per task; also their logarithms in the balanced flow."""

    mu: Float[Array, "heads tasks"]
    omega: Float[Array, "heads tasks"]


class Factors(NamedTuple):
    """The four factors of each head and task."""

    o: Float[Array, "heads tasks"]
    v: Float[Array, "heads tasks"]
    k: Float[Array, "heads tasks"]
    q: Float[Array, "heads tasks"]

    def spectrum(self, tasks: Tasks) -> Spectrum:
        """Eigenvalues mu = o v, omega = k q / sqrt(d_e)."""
        return Spectrum(self.o * self.v, self.k * self.q / jnp.sqrt(tasks.d_e))

    def balances(self) -> tuple[Float[Array, "heads tasks"], Float[Array, "heads tasks"]]:
        """o^2 - v^2 and k^2 - q^2, conserved."""
        return self.o**2 - self.v**2, self.k**2 - self.q**2


def balanced(spectrum: Spectrum, tasks: Tasks) -> Factors:
    """The factors o = v, k = q of a positive spectrum."""
    v, k = jnp.sqrt(spectrum.mu), jnp.sqrt(spectrum.omega * jnp.sqrt(tasks.d_e))
    return Factors(v, v, k, k)


def kappa(omega: Float[Array, "heads tasks"], d: Float[Array, " tasks"]) -> Float[Array, "heads heads"]:
    """kappa_hg = sum_j d_j omega_j^h omega_j^g."""
    return (omega * d[None]) @ omega.T


def losses(spectrum: Spectrum, tasks: Tasks) -> Float[Array, " tasks"]:
    """Loss_i."""
    mu, omega = spectrum
    signal = (1 - jnp.sum(mu * omega, axis=0)) ** 2
    return tasks.S * (signal + tasks.phi / tasks.L * jnp.sum(mu * (jnp.exp(kappa(omega, tasks.d)) @ mu), axis=0))


def loss(spectrum: Spectrum, tasks: Tasks) -> Float[Array, ""]:
    """Loss, the sum over the tasks."""
    return jnp.sum(losses(spectrum, tasks))


def pull(spectrum: Spectrum, tasks: Tasks) -> Spectrum:
    """-dLoss/dmu and -dLoss/domega."""
    mu, omega = spectrum
    weight = tasks.S * tasks.phi / tasks.L
    grown = jnp.exp(kappa(omega, tasks.d))
    missing = (tasks.S * (1 - jnp.sum(mu * omega, axis=0)))[None]
    crowd = grown * ((mu * weight[None]) @ mu.T)  # sum_j S_j (phi_j/L) mu_j^h mu_j^g e^{kappa_hg}
    return Spectrum(2 * (omega * missing - weight[None] * (grown @ mu)), 2 * (mu * missing - tasks.d[None] * (crowd @ omega)))


def balanced_rates(pulls: Spectrum, tasks: Tasks) -> Spectrum:
    """(ln mu)', (ln omega)' of the balanced flow under -dLoss/dmu, -dLoss/domega of any loss."""
    return Spectrum(2 * pulls.mu, 2 * pulls.omega / (tasks.d * jnp.sqrt(tasks.d_e))[None])


def factor_rates(factors: Factors, pulls: Spectrum, tasks: Tasks) -> Factors:
    """o', v', k', q' under -dLoss/dmu, -dLoss/domega of any loss."""
    to_omega = pulls.omega / (tasks.d * jnp.sqrt(tasks.d_e))[None]
    return Factors(factors.v * pulls.mu, factors.o * pulls.mu, factors.q * to_omega, factors.k * to_omega)


def balanced_field(logs: Spectrum, tasks: Tasks) -> Spectrum:
    """(ln mu)', (ln omega)' from (ln mu, ln omega), to leading order."""
    return balanced_rates(pull(Spectrum(jnp.exp(logs.mu), jnp.exp(logs.omega)), tasks), tasks)


def factors_field(factors: Factors, tasks: Tasks) -> Factors:
    """o', v', k', q' to leading order."""
    return factor_rates(factors, pull(factors.spectrum(tasks), tasks), tasks)


def warm_up_field(logs: Spectrum, tasks: Tasks) -> Spectrum:
    """(ln mu)', (ln omega)' while omega and mu omega are small: the tasks do not meet, the heads of one task share a drag."""
    mu, omega = jnp.exp(logs.mu), jnp.exp(logs.omega)
    drag = tasks.phi / tasks.L * jnp.sum(mu, axis=0)
    return Spectrum((4 * tasks.S)[None] * (omega - drag[None]), tasks.speed[None] * mu)


class Head(NamedTuple):
    """The one head of each task, every task alone; also its logarithms or its rates."""

    mu: Float[Array, " tasks"]
    omega: Float[Array, " tasks"]


def emergence_field(logs: Head, tasks: Tasks) -> Head:
    """(ln mu)', (ln omega)' of the head of each task alone."""
    mu, omega = jnp.exp(logs.mu), jnp.exp(logs.omega)
    E = tasks.phi / tasks.L * jnp.exp(tasks.d * omega**2)
    return Head(4 * tasks.S * (omega - mu * (omega**2 + E)), tasks.speed * mu * (1 - mu * omega * (1 + tasks.d * E)))


def slaved(omega: Float[Array, " tasks"], tasks: Tasks) -> Float[Array, " tasks"]:
    """The best mu for an omega."""
    return omega / (omega**2 + tasks.phi / tasks.L * jnp.exp(tasks.d * omega**2))


def slaved_field(omega: Float[Array, " tasks"], tasks: Tasks) -> Float[Array, " tasks"]:
    """Rate of omega for the head of each task alone, with mu slaved."""
    E = tasks.phi / tasks.L * jnp.exp(tasks.d * omega**2)
    return tasks.speed * E * omega**2 * (1 - tasks.d * omega**2) / (omega**2 + E) ** 2


def convergence_rates(tasks: Tasks) -> tuple[Float[Array, " tasks"], Float[Array, " tasks"]]:
    """The slow and the fast rate at which the head of each task reaches its limit."""
    P, Q, y = 4 * tasks.S / jnp.sqrt(tasks.d), tasks.speed * jnp.sqrt(tasks.d) / (1 + tasks.x), tasks.x / (1 + tasks.x)
    trace = P + Q * (1 + 2 * y)
    fast = 0.5 * (trace + jnp.sqrt((P - Q * (1 + 2 * y)) ** 2 + 4 * P * Q))
    return 2 * P * Q * y / fast, fast


def slaved_rate(tasks: Tasks) -> Float[Array, " tasks"]:
    """The rate at which `slaved_field` reaches its limit, somewhat above the true slow rate."""
    return 2 * tasks.speed * jnp.sqrt(tasks.d) * tasks.x / (1 + tasks.x) ** 2
