r"""Moments of the correlations of a context with its labels, exactly, at any n. Derived here.

The correlations are $r_j = (1/n) sum_i x_ij y_i$. Given $x_j$, $r_j ~ N(w_j Q, T Q/n)$ with $Q = |x_j|^2/n$ and
$T = sigma^2 + sum_{k != j} w_k^2$, so with $E Q^k = prod_{i<k} (n + 2i)/n^k$

    A = E w_j^2 = (s/d) m2
    B = E w_j r_j^3 = (s/d) (m4 E Q^3 + 3 m2 E T_1 E Q^2/n)
    C = E r_j^6 = (s/d) (m6 E Q^6 + 15 m4 E T_1 E Q^5/n + 45 m2 E T_1^2 E Q^4/n^2 + 15 E T_1^3 E Q^3/n^3)
      + (1 - s/d) 15 E T_0^3 E Q^3/n^3

where $m_k = E w^k$ of a non-zero coefficient, $T_1$ has the other $s - 1$ coefficients and $T_0$ (off the support) all $s$ of them.
"""

import math
from typing import NamedTuple

from spectral_ode.systems.sparse.data import Law, Number


class Correlations(NamedTuple):
    """A, B and C of one coordinate; w = kappa r^3 has risk A - 2 kappa B + kappa^2 C, least at kappa = B/C."""

    A: float
    B: Number
    C: Number

    @property
    def best(self) -> Number:
        """kappa* = B/C."""
        return self.B / self.C


def correlations(law: Law) -> Correlations:
    """The moments for one law of the tasks."""
    n, share = law.n, law.s / law.d
    Q = [math.prod(n + 2 * i for i in range(k)) / float(n) ** k for k in range(7)]
    m2, m4, m6 = law.power(2), law.power(4), law.power(6)
    T1, T0 = ([law.square(count, k) for k in range(4)] for count in (law.s - 1, law.s))
    on = m6 * Q[6] + 15 * m4 * T1[1] * Q[5] / n + 45 * m2 * T1[2] * Q[4] / n**2 + 15 * T1[3] * Q[3] / n**3
    return Correlations(
        A=share * m2,
        B=share * (m4 * Q[3] + 3 * m2 * T1[1] * Q[2] / n),
        C=share * on + (1 - share) * 15 * T0[3] * Q[3] / n**3,
    )
