r"""What softmax attention does on average to Gaussian tokens, exactly for a finite context: the loss of a decomposable model.

Symbols of arXiv:2402.19442: $omega_i^h$ multiplies $x.q$ in block $i$ of the scores of head $h$ (the paper's omega-bar), $mu_i^h$
multiplies its output for task $i$; $d_i$ is the size of block $i$, $r_i = |q_i|^2 / d_i$, $S_i = E (g_i.q_i)^2$, $sigma^2$ the noise of
the labels, $L$ tokens. The derivation is ours. Given the query, the scores of two heads $h$, $g$ are Gaussian with

    v_h = sum_i (omega_i^h)^2 |q_i|^2,    k = sum_i omega_i^h omega_i^g |q_i|^2.

$p = grad ln Z$, so with $F(v_h, v_g, k) = E ln Z_h ln Z_g$ and subscripts for derivatives ($d/dk = E sum_l d_l d'_l$, and $d/dv$ is half
of the mean Laplacian)

    C = E sum_l p_l p'_l = F_k
    K = E (1 - sum p^2)(1 - sum p'^2) = 4 F_{v_h v_g} = (1 - c_h)(1 - c_g) + 4 int_0^k C_{v_h v_g} dk

Integrating by parts over the tokens twice (Stein), with $c(v) = E sum p^2$ and $omega_h$ short for $omega_i^h$:

    A_i^h = E q_i.X_i p / d_i = omega_i^h E_q[ r_i (1 - c(v_h)) ]
    B_i^hg = E (X_i p).(X_i p') / d_i = E_q[ C + r_i ( 2 omega_h^2 C_{v_h} + 2 omega_g^2 C_{v_g} + omega_h omega_g (C_k + K) ) ]
    B_i^hh = E_q[ c + r_i omega_h^2 g ],    g = 4 C_{v_h} + C_k + K  at  v_h = v_g = k

The two scores themselves, $s^1 = s$ of head $h$ and $s^2 = s'$ of head $g$, have

    T_ab = E sum_lm s^a_l s^b_m p_l p'_m = (C Gamma + Gamma D Gamma)_ab
    Gamma = [[v_h, k], [k, v_g]],    D = [[2 C_{v_h}, K], [C_k, 2 C_{v_g}]]

The loss of task $i$:

    loss_i = S_i ( 1 - 2 sum_h mu_i^h A_i^h + sum_hg mu_i^h mu_i^g B_i^hg ) + sigma^2 sum_hg mu_i^h mu_i^g E_q C_hg

$c$ and $g$ are polynomials in $w = v / (TAU + v)$, and $C$ is the series of `_tables`, whose derivatives and integral in $k$ are taken
term by term; so $h = g$ is exact to 1e-9 and $h != g$ to the errors stated in tests/test_expectations.py. $|q_i|^2$ is chi-squared with
$d_i$ degrees of freedom: Gauss-Laguerre.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import roots_genlaguerre
from scipy.stats import chi2, qmc

from spectral_ode.systems.softmax._leading import Spectrum
from spectral_ode.systems.softmax._tables import LARGEST, RANK, SPAN, TAU, TERMS, tables

QUERIES = {1: 16, 2: 10}  # Gauss-Laguerre nodes per task for so many tasks, 6 for more: at most about 200 points for three
MOST, SOBOL = 2000, 1024  # the largest product rule, and the points of the rule that takes its place
NEGLIGIBLE = 1e-11  # probability of the queries which the average leaves out


class Pair(eqx.Module):
    """Two heads at one query: C, its derivatives, and K."""

    C: Float[Array, "..."]
    C_h: Float[Array, "..."]
    C_g: Float[Array, "..."]
    C_k: Float[Array, "..."]
    K: Float[Array, "..."]


class Expectations(eqx.Module):
    """Averages over the tokens for one L; smooth functions of v in [0, LARGEST] and of k, to be differentiated as often as needed."""

    single: Float[Array, "two degree"]
    cross: Float[Array, "features more_degree"]

    def concentration(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        """c(v) = E sum_l p_l^2."""
        return self._single(v)[..., 0]

    def spread(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        """g(v) = (m2/v - c)/v, which is 1 - 1/L at v = 0."""
        return self._single(v)[..., 1]

    def second(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        """m2(v) = E (sum_l p_l s_l)^2."""
        c, g = jnp.moveaxis(self._single(v), -1, 0)
        return v * (c + v * g)

    def pair(self, v_h: Float[Array, "..."], v_g: Float[Array, "..."], k: Float[Array, "..."]) -> Pair:
        """Two heads with score variances v_h, v_g and covariance k, k^2 <= v_h v_g."""
        v = jnp.stack([v_h, v_g], axis=-1)
        found = self._pair(v, self.concentration(v), k[..., None], np.asarray([0]), np.asarray([1]))
        return jax.tree.map(lambda x: x[..., 0], found)

    def moment(self, v_h: Float[Array, ""], v_g: Float[Array, ""], k: Float[Array, ""]) -> Float[Array, "2 2"]:
        """T_ab = E sum_lm sigma^a_l sigma^b_m p_l p'_m with sigma = (s, s')."""
        x = self.pair(v_h, v_g, k)
        Gamma = jnp.stack([jnp.stack([v_h, k]), jnp.stack([k, v_g])])
        D = jnp.stack([jnp.stack([2 * x.C_h, x.K]), jnp.stack([x.C_k, 2 * x.C_g])])
        return x.C * Gamma + Gamma @ D @ Gamma

    def loss(
        self,
        spectrum: Spectrum,
        dimensions: tuple[int, ...],
        signal: Float[Array, " tasks"],
        noise: Float[Array, ""],
        *,
        queries: int | tuple[int, ...] | None = None,
    ) -> Float[Array, " tasks"]:
        """Mean squared error of each task at a noise-free query label; `noise` is sigma^2, `queries` the nodes, per task or for all."""
        mu, omega = (part.T for part in spectrum)  # tasks x heads: averages over queries act on tasks
        h, g = np.triu_indices(omega.shape[1], 1)
        square, weight = (jnp.asarray(x, omega.dtype) for x in query_rule(dimensions, queries))
        weighted = weight[:, None] * square / jnp.asarray(dimensions, omega.dtype)[None]
        mean, mean_r = lambda x: weight @ x, lambda x: weighted.T @ x  # E_q x and E_q r_i x
        v = square @ omega**2
        c, spread = jnp.moveaxis(self._single(v), -1, 0)
        A = omega * mean_r(1 - c)
        B = mean(c)[None] + omega**2 * mean_r(spread)
        fit, heard = jnp.sum(mu * (mu * B - 2 * A), axis=1), mu**2 @ mean(c)
        if h.size:
            o, p = omega[:, h], omega[:, g]
            x = self._pair(v, c, square @ (o * p), h, g)
            B = mean(x.C)[None] + 2 * o**2 * mean_r(x.C_h) + 2 * p**2 * mean_r(x.C_g) + o * p * mean_r(x.C_k + x.K)
            both = 2 * mu[:, h] * mu[:, g]
            fit, heard = fit + jnp.sum(both * B, axis=1), heard + both @ mean(x.C)
        return signal * (1 + fit) + noise * heard

    def _basis(self, v: Float[Array, "..."], count: int) -> Float[Array, "... count"]:
        """Chebyshev polynomials of w, by their recurrence, which has a derivative everywhere."""
        x = 2 / SPAN * v / (TAU + v) - 1
        rows = [jnp.ones_like(x), x]
        while len(rows) < count:
            rows.append(2 * x * rows[-1] - rows[-2])
        return jnp.stack(rows, axis=-1)

    def _single(self, v: Float[Array, "..."]) -> Float[Array, "... 2"]:
        return self._basis(v, self.single.shape[1]) @ self.single.T

    def _pair(self, v: Float[Array, "... heads"], c: Float[Array, "... heads"], k: Float[Array, "... pairs"], h, g) -> Pair:
        """All pairs (h, g) of heads, which are the last axis."""
        features = (self._basis(v, self.cross.shape[1]) @ self.cross.T).reshape(*v.shape, 2, RANK, TERMS)
        u, slope = ([features[..., head, part, :, :] for head in range(v.shape[-1])] for part in range(2))
        inner = lambda a, b: jnp.stack([jnp.sum(a[i] * b[j], axis=-2) for i, j in zip(h, g, strict=True)], axis=-2)
        scale = 1 / jnp.sqrt((TAU + v[..., h]) * (TAU + v[..., g]))
        z = k * scale
        powers, n = _powers(z), jnp.arange(TERMS, dtype=z.dtype)
        return Pair(
            C=jnp.sum(inner(u, u) * powers, axis=-1),
            C_h=jnp.sum(inner(slope, u) * powers, axis=-1),
            C_g=jnp.sum(inner(u, slope) * powers, axis=-1),
            C_k=scale * ((inner(u, u)[..., 1:] * powers[..., :-1]) @ n[1:]),
            K=(1 - c[..., h]) * (1 - c[..., g]) + 4 * z / scale * ((inner(slope, slope) * powers) @ (1 / (n + 1))),
        )


def _powers(z: Float[Array, "..."]) -> Float[Array, "... terms"]:
    """1, z, z^2, ... by doubling."""
    powers, top = jnp.ones_like(z)[..., None], z[..., None]
    while powers.shape[-1] < TERMS:
        powers, top = jnp.concatenate([powers, powers * top], axis=-1), top**2
    return powers[..., :TERMS]


def default_queries(tasks: int) -> int:
    """Gauss-Laguerre nodes per task."""
    return QUERIES.get(tasks, 6)


def query_rule(dimensions: tuple[int, ...], queries: int | tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Values of all |q_i|^2 together [points, tasks], and their probabilities: the product of Gauss-Laguerre rules for chi^2_{d_i}.

    The corners, where several norms are extreme at once, are left out: everything that is averaged is bounded. From five tasks on the
    product is too large; then a Sobol sequence covers the norms evenly (good to about 1e-3 of a loss, the product to 1e-5 at d_i = 4).
    """
    tasks = len(dimensions)
    queries = default_queries(tasks) if queries is None else queries
    counts = (queries,) * tasks if isinstance(queries, int) else queries
    if np.prod(counts) > MOST:
        points = qmc.Sobol(tasks, rng=0).random(SOBOL)
        return chi2.ppf(np.clip(points, 1e-9, 1 - 1e-9), np.asarray(dimensions)), np.full(SOBOL, 1 / SOBOL)
    rules = [roots_genlaguerre(count, d / 2 - 1) for count, d in zip(counts, dimensions, strict=True)]
    square = np.stack([axis.ravel() for axis in np.meshgrid(*(2 * node for node, _ in rules), indexing="ij")], axis=1)
    weights = np.meshgrid(*(weight / weight.sum() for _, weight in rules), indexing="ij")
    weight = np.prod([axis.ravel() for axis in weights], axis=0)
    order = np.argsort(weight)
    kept = np.sort(order[np.cumsum(weight[order]) > NEGLIGIBLE])
    return square[kept], weight[kept]


def reach(
    omega: Float[Array, "heads tasks"], dimensions: tuple[int, ...], *, queries: int | tuple[int, ...] | None = None
) -> Float[Array, ""]:
    """Largest variance of a score over the queries of `Expectations.loss`, over that of the tables; above 1 they extrapolate, wildly."""
    square, _ = query_rule(dimensions, queries)
    return jnp.max(jnp.asarray(square, omega.dtype) @ omega.T**2) / LARGEST


def expectations(L: int) -> Expectations:
    """The averages for L tokens. The first call for an L builds its tables, the next ones find them."""
    return Expectations(*(jnp.asarray(table) for table in tables(L)))
