r"""The 2^D fixed points of linear attention in function space, and how each of them is left.

One fixed point per subset $S$ of the eigenvectors (arXiv:2501.16265, Section 4), with its loss:

    A = sum_{d in S} A*_d e_d e_d^T
    L(S) = tr(Lambda Sigma) - sum_{d in S} gain_d

That is all of them for distinct gains and $H R >= D$.

Stability (ours). Put one head on each learned direction and leave the others at zero. The loss then has one direction of negative
curvature for each pair ($d$ in $S$, $e$ not in $S$) with $gain_e > gain_d$. The points that training visits, $S = {1..m}$, have none: an
idle head at zero feels the loss only through $v k^T G q$, at third order. They are non-strict saddles; only $S = {1..D}$ is a minimum.
"""

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode.problem import BadInput
from spectral_ode.systems.linear.data import Statistics
from spectral_ode.weights import SeparateWeights


class FixedPoint(NamedTuple):
    """Learned directions (0 is learned first), loss, directions of negative curvature, and what kind of point it is."""

    subset: tuple[int, ...]
    loss: float
    negative: int
    kind: str


def fixed_points(data: Statistics) -> list[FixedPoint]:
    """All 2^D of them, best first."""
    d, gain, total = data.lam.size, np.asarray(data.gain), float(data.power)
    if d > 16:
        raise BadInput(f"{d} eigenvalues have 2^{d} fixed points; they are listed for at most 16")
    points = []
    for subset in itertools.chain.from_iterable(itertools.combinations(range(d), size) for size in range(d + 1)):
        rest = [e for e in range(d) if e not in subset]
        negative = sum(bool(gain[e] > gain[i]) for i in subset for e in rest)
        kind = "minimum" if not rest else "strict saddle" if negative else "non-strict saddle"
        points.append(FixedPoint(subset, total - float(sum(gain[i] for i in subset)), negative, kind))
    return sorted(points, key=lambda point: point.loss)


def weights_at(subset: tuple[int, ...], heads: int, limit: Float[Array, " d"], basis: Float[Array, "d d"]) -> SeparateWeights:
    """Weights at a fixed point: head j carries the j-th direction of the subset, the other heads are zero."""
    if len(subset) > heads:
        raise BadInput(f"{len(subset)} directions need at least {len(subset)} heads of rank one, but there are {heads}")
    chosen, count = jnp.asarray(subset, int), len(subset)
    value = jnp.zeros(heads).at[:count].set(limit[chosen])
    key = jnp.zeros((heads, 1, limit.size)).at[:count, 0].set(value[:count, None] * basis.T[chosen])
    return SeparateWeights(value, key, key)
