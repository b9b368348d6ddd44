r"""Tables of softmax averages over Gaussian scores, exact for a finite number L of tokens; no Monte Carlo. Built once per L, in numpy.

Two heads see scores $(s_l, s'_l) ~ N(0, [[v, k], [k, v']])$, independent over $l = 1..L$; $p$ is the softmax of $s$ and
$Z = sum_l e^{s_l}$. With

    f(t, u) = E e^{-t e^s - u e^{s'}},    1/Z^j = int_0^inf t^{j-1} e^{-t Z} dt / (j-1)!

averages of products of $p$ become integrals over $t$ (and $u$) of one-token averages times powers of $f$. One head,
$phi_j(t) = E e^{j s - t e^s}$:

    E sum p^2 = L int t phi_2 f^{L-1} dt,    E sum p^3 = L int (t^2/2) phi_3 f^{L-1} dt
    E (sum p^2)^2 = int (t^3/6) [ L phi_4 f^{L-1} + L (L-1) phi_2^2 f^{L-2} ] dt

Two heads: with normalized Hermite polynomials $he_n$ and $rho = k / sqrt(v v')$, Mehler's formula separates the two scores,

    f = sum_n rho^n a_n(t) a'_n(u),    a_n(t) = E[he_n(x) e^{-t e^{sqrt(v) x}}]
    C = E sum_l p_l p'_l = L intint phi_11 f^{L-1} dt du = sum_n rho^n m_n(v, v'),    phi_11 = d^2 f / dt du

The right side is a power series in $rho$, so $m_n$ follows from $C$ at the roots of unity by a Fourier transform. Each $m_n$ is a Gram
matrix in $(v, v')$ and numerically of low rank: $m_n(v, v') = sum_r psi_nr(v) psi_nr(v')$. $psi_nr$ vanishes like $v^{n/2}$, hence
(ours), with polynomials $u_nr$,

    psi_nr(v) = w^{n/2} u_nr(w),    w = v / (TAU + v)
    C = sum_nr z^n u_nr(w) u_nr(w'),    z = k / sqrt((TAU + v)(TAU + v'))

which is smooth in $(v, v', k)$, parallel heads and $v = 0$ included: no root, no division by $v$.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

LARGEST = 16.0  # largest v of the tables
TAU = 3.0  # where w turns from v / TAU to 1
DEGREE = 32  # of c and g in w
NODES = 24  # values of v at which m_n is known
CROSS_DEGREE = 15  # of u_nr in w; higher ones fit the noise
TERMS = 56  # powers of z
RANK = 5  # terms kept of each m_n
ROOTS = 64  # roots of unity; the powers TERMS..ROOTS-1 are left out
HERMITE = 128  # terms of Mehler's formula, a multiple of ROOTS
STEP = 0.1  # trapezoid rule in x, from -12.5 to 12.5
SPAN = LARGEST / (TAU + LARGEST)  # w of the largest v


class Tables(NamedTuple):
    """Chebyshev coefficients in 2 w / SPAN - 1, of: c and g; all u_nr, then all (TAU + v)^{n/2} d/dv [(TAU + v)^{-n/2} u_nr]."""

    single: np.ndarray
    cross: np.ndarray  # [2 RANK TERMS, CROSS_DEGREE + 2]


def _hermite() -> tuple[np.ndarray, np.ndarray]:
    """Nodes x, and rows which sum a function times he_n over the standard normal law."""
    x = STEP * np.arange(-125, 126)
    rows = [np.exp(-(x**2) / 4) / (2 * np.pi) ** 0.25]
    rows.append(x * rows[0])
    for n in range(1, HERMITE - 1):
        rows.append((x * rows[n] - np.sqrt(n) * rows[n - 1]) / np.sqrt(n + 1))
    return x, np.stack(rows) * rows[0] * STEP


X, RULE = _hermite()


def _decay(log_t: np.ndarray, v: float) -> np.ndarray:
    """The exponent t e^s at all nodes x, [t, x]."""
    return np.exp(np.clip(log_t[:, None] + np.sqrt(v) * X[None], -700.0, 6.6))  # e^{-e^6.6} = 0


def _t_rule(L: int, v: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes log t and weights for d log t. Both tails fall double exponentially: the right one by itself, the left one by the map."""
    log_t = np.linspace(-60.0, 80.0, 281)
    f = np.exp(-_decay(log_t, v)) @ RULE[0]
    exponent = (1 - L) * np.log(np.maximum(f, 1e-300))
    knee, right = np.interp([1.0, 36.0], exponent, log_t)
    scale = 1 + 0.25 * np.sqrt(v)
    x, step = np.linspace(-3.5, (right - knee) / scale, count, retstep=True)
    return knee + scale * (x - np.exp(-x)), scale * (1 + np.exp(-x)) * step


def one_head(L: int, v: float, count: int = 120) -> tuple[float, float]:
    """E sum p^2 = c and g = (m2/v - c)/v = 1 - c + 6 E[(sum p^2)^2 - sum p^3], directly."""
    log_t, weight = _t_rule(L, v, count)
    y = _decay(log_t, v)
    f, phi_2, phi_3, phi_4 = ((np.exp(-y) * y**j) @ RULE[0] for j in (0, 2, 3, 4))  # phi_j t^j
    c = L * np.sum(weight * phi_2 * f ** (L - 1))
    cubes = L / 2 * np.sum(weight * phi_3 * f ** (L - 1))
    squares = L / 6 * np.sum(weight * (phi_4 * f ** (L - 1) + (L - 1) * phi_2**2 * f ** (L - 2)))
    return c, 1 - c + 6 * (squares - cubes)


def _power(f: np.ndarray, exponent: int) -> np.ndarray:
    """f^exponent by squaring, several times faster than numpy's for complex numbers."""
    out = np.ones_like(f)
    while exponent:
        if exponent & 1:
            out = out * f
        f, exponent = f * f, exponent >> 1
    return out


def _mehler(L: int, v: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """a_n(t), and -a_n'(t) times t and the weight of the rule: [t, n]."""
    log_t, weight = _t_rule(L, v, count)
    y = _decay(log_t, v)
    return np.exp(-y) @ RULE.T, weight[:, None] * ((y * np.exp(-y)) @ RULE.T)


def _integral(L: int, f: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """L times the double sum of phi_11 f^{L-1} over t and u; phi carries the weights."""
    return L * np.sum(phi * _power(f, L - 1), axis=(0, 1))


def two_heads(L: int, v_h: float, v_g: float, rho: np.ndarray, count: int = 80) -> np.ndarray:
    """C at correlations rho, directly."""
    powers = rho ** np.arange(HERMITE)[:, None]
    heads = zip(_mehler(L, v_h, count), _mehler(L, v_g, count), strict=True)
    return _integral(L, *((a[:, None] * b[None]) @ powers for a, b in heads))


def cross(L: int, v: np.ndarray, count: int) -> np.ndarray:
    """m_n(v_i, v_j) for n < ROOTS: a Fourier transform over n puts rho on all roots of unity, and one takes C back to powers of rho."""
    heads = [_mehler(L, each, count) for each in v]
    m = np.zeros((ROOTS, v.size, v.size))
    for i in range(v.size):
        for j in range(i + 1):
            terms = (a[:, None] * b[None] for a, b in zip(heads[i], heads[j], strict=True))
            circle = (np.fft.rfft(x.reshape(*x.shape[:2], -1, ROOTS).sum(axis=2)) for x in terms)  # rho^ROOTS = 1
            m[:, i, j] = m[:, j, i] = np.fft.irfft(_integral(L, *circle), ROOTS)
    return m


def _nodes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Chebyshev nodes between -1 and 1, and v there."""
    x = -np.cos(np.pi * (np.arange(count) + 0.5) / count)
    w = SPAN * (1 + x) / 2
    return x, TAU * w / (1 - w)


@functools.cache
def tables(L: int) -> Tables:
    """All coefficients for L tokens; takes one to three seconds."""
    if L < 2:
        raise ValueError(f"softmax over {L} tokens is constant; give L >= 2")
    x, v = _nodes(DEGREE + 1)
    single = chebyshev.chebfit(x, np.asarray([one_head(L, each) for each in v]), DEGREE).T
    x, v = _nodes(NODES)
    w = v / (TAU + v)
    m = cross(L, v, 40 if L >= 30 else 60)  # with few tokens f^{L-1} falls slowly
    u = np.zeros((TERMS, RANK, CROSS_DEGREE + 1))
    basis = chebyshev.chebvander(x, CROSS_DEGREE)
    for n in range(TERMS):
        values, vectors = np.linalg.eigh(m[n])
        psi = vectors[:, -RANK:] * np.sqrt(np.maximum(values[-RANK:], 0.0))
        # Least squares of psi itself: near v = 0 u_nr is amplified noise, which z^n takes back.
        u[n] = np.linalg.lstsq(w[:, None] ** (n / 2) * basis, psi, rcond=1e-13)[0].T
    return Tables(single, np.stack([_pad(u), _slope(u)]).swapaxes(1, 2).reshape(2 * RANK * TERMS, -1))


def _pad(u: np.ndarray) -> np.ndarray:
    return np.pad(u, ((0, 0), (0, 0), (0, 1)))


def _slope(u: np.ndarray) -> np.ndarray:
    """dw/dv = (1-w)^2 / TAU and 1/(TAU + v) = (1-w)/TAU: the slope is (1-w)/TAU [ (1-w) du/dw - (n/2) u ], a polynomial again."""
    rest = np.asarray([1 - SPAN / 2, -SPAN / 2])  # 1 - w
    out = np.zeros((*u.shape[:2], u.shape[2] + 1))
    for n, r in np.ndindex(*u.shape[:2]):
        bracket = chebyshev.chebsub(chebyshev.chebmul(rest, chebyshev.chebder(u[n, r]) * 2 / SPAN), n / 2 * u[n, r])
        out[n, r] = chebyshev.chebmul(rest, bracket) / TAU
    return out
