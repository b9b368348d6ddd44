r"""Linear attention (arXiv:2501.16265) in plain numbers, from the task of a problem.

    g_d = <n f> lam_d^2 sig_d,   C_d = <n^2 f^2> lam_d^2 sig_d + <n f^2> (lam_d^2 sig_d + (sum lam sig + s2) lam_d)
    separate   v' = sum_r k.G q,  k' = v G q,  q' = v G^T k       reduced   v' = g v^2 - lam C v^5,      G = diag(g) - C A Lam
    merged     v' = <U, G>,  U' = v G                             reduced   s' = a.p, a' = s p, p = g - lam C s a

Every block: second moments of the features are summed over Gauss-Hermite nodes of w (degree 4) and x_q (degree 6), where
`systems.linear.blocks` contracts Isserlis tensors; given both, Ghat = f (S + q q^T) with S a Wishart matrix of n tokens.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from spectral_ode.problem import MergedHeads, Problem, SeparateHeads
from validate.plain.numbers import Field, many

WHOLE = slice(None)


class Task:
    """What a problem says of its sequences, by falling rate, in numbers of one kind (`number` makes them from floats)."""

    def __init__(self, problem: Problem, number: Callable[[Any], np.ndarray] = many):
        task, d = problem.regression, len(problem.regression.spectrum)
        lam, sig = np.asarray(task.spectrum, float), np.broadcast_to(np.asarray(task.prior, float), (d,))
        order = sorted(range(d), key=lambda i: -(lam[i] ** 2) * sig[i])
        n = number([float(context) for context in problem.contexts])
        f = number([problem.factor(context) for context in problem.contexts])
        self.lam, self.sig = number(lam[order]), number(sig[order])
        turned = np.eye(d) if task.rotation == 0 else np.asarray(jax.random.orthogonal(jax.random.key(task.rotation), d))
        self.basis, self.noise = number(turned), number(task.noise**2)
        first, second, third = (sum(part) / len(part) for part in (n * f, n**2 * f**2, n * f**2))
        signal = self.lam**2 * self.sig
        self.power = sum(self.lam * self.sig)
        self.g = first * signal
        self.C = second * signal + third * (signal + (self.power + self.noise) * self.lam)

    @property
    def best(self) -> np.ndarray:
        """A* in the eigenbasis."""
        return self.g / (self.C * self.lam)

    @property
    def gain(self) -> np.ndarray:
        """What each direction takes from the loss."""
        return self.g**2 / (self.C * self.lam)

    def matrix(self, eigenvalues: np.ndarray) -> np.ndarray:
        """In the coordinates of the tokens."""
        return (self.basis * eigenvalues[None]) @ self.basis.T

    def pull(self, A: np.ndarray) -> np.ndarray:
        """G."""
        return self.matrix(self.g) - self.matrix(self.C) @ A @ self.matrix(self.lam)

    def loss(self, A: np.ndarray) -> Any:
        """L(A), in the coordinates of the tokens."""
        quadratic = A.T @ self.matrix(self.C) @ A @ self.matrix(self.lam)
        return self.power - 2 * np.sum(A * self.matrix(self.g)) + np.trace(quadratic)


def separate_reduced(problem: Problem) -> Field:
    """V."""
    task = Task(problem)
    return Field(WHOLE, lambda v: task.g * v**2 - task.lam * task.C * v**5)


def separate_weights(problem: Problem) -> Field:
    """value, key, query."""
    attention, d = problem.attention, len(problem.regression.spectrum)
    assert isinstance(attention, SeparateHeads)
    task, H, R = Task(problem), attention.heads, attention.rank

    def rate(flat: np.ndarray) -> np.ndarray:
        v, k, q = flat[:H], flat[H : H + H * R * d].reshape(H, R, d), flat[H + H * R * d :].reshape(H, R, d)
        G = task.pull(np.sum([v[h] * np.outer(k[h, r], q[h, r]) for h in range(H) for r in range(R)], axis=0))
        dv = [sum(k[h, r] @ G @ q[h, r] for r in range(R)) for h in range(H)]
        dk = [v[h] * (G @ q[h, r]) for h in range(H) for r in range(R)]
        dq = [v[h] * (G.T @ k[h, r]) for h in range(H) for r in range(R)]
        return np.concatenate([np.asarray(dv), *dk, *dq])

    return Field(WHOLE, rate)


def merged_reduced(problem: Problem) -> Field:
    """s, a."""
    task = Task(problem)

    def rate(flat: np.ndarray) -> np.ndarray:
        s, a = flat[0], flat[1:]
        left = task.g - task.lam * task.C * s * a
        return np.concatenate([[sum(a * left)], s * left])

    return Field(WHOLE, rate)


def merged_weights(problem: Problem) -> Field:
    """value, key_query."""
    task, H, d = Task(problem), problem.attention.heads, len(problem.regression.spectrum)

    def rate(flat: np.ndarray) -> np.ndarray:
        v, U = flat[:H], flat[H:].reshape(H, d, d)
        G = task.pull(np.sum([v[h] * U[h] for h in range(H)], axis=0))
        return np.concatenate([np.asarray([np.sum(U[h] * G) for h in range(H)]), *((v[h] * G).ravel() for h in range(H))])

    return Field(WHOLE, rate)


def laws(problem: Problem, share: float, number: Callable[[Any], np.ndarray] = many) -> list[tuple[Any, np.ndarray, np.ndarray]]:
    """Probability, covariance of a token, and w, at the nodes of w of a law in which a share of the sequences has its own task."""
    task, d = Task(problem, number), len(problem.regression.spectrum)
    cov = task.matrix(task.lam)

    def token(w: np.ndarray, noise: Any) -> np.ndarray:
        top = np.concatenate([cov, (cov @ w)[:, None]], axis=1)
        return np.concatenate([top, np.concatenate([cov @ w, [w @ cov @ w + noise]])[None]])

    found = []
    three, zero = number(3.0), number(0.0)
    nodes = [(-(three ** number(0.5)), 1 / (2 * three)), (zero, 2 / three), (three ** number(0.5), 1 / (2 * three))]
    if share > 0:
        for chosen in itertools.product(nodes, repeat=d):
            w = task.basis @ (task.sig ** number(0.5) * np.asarray([x for x, _ in chosen]))
            found.append((number(share) * np.prod([p for _, p in chosen]), token(w, task.noise), w))
    shared = np.asarray(jax.random.normal(jax.random.fold_in(_task_key(problem), 7), (d,)), float)
    shared = number(shared * np.sqrt(d / np.sum(shared**2)))
    if 0 < share < 1:
        found.append((number(1 - share), token(shared, task.noise), shared))
    if share == 0:
        found.append((number(1.0), token(shared * 0, number(1.0)), shared))
    return found


def _task_key(problem: Problem):
    return jax.random.fold_in(jax.random.key(problem.seed.task), 1)  # the stream of the tasks


def feature_moments(problem: Problem, share: float, contexts: tuple[int, ...], number=many) -> tuple[np.ndarray, np.ndarray, Any]:
    """E[phi phi^T], E[phi y] and E y^2 of the cubic features, at four nodes of every coordinate of x_q."""
    task, d = Task(problem, number), len(problem.regression.spectrum)
    pairs = list(itertools.combinations_with_replacement(range(d + 1), 2))
    root = task.basis * (task.lam ** number(0.5))[None]
    six = number(6.0) ** number(0.5)
    outer, inner = (number(3.0) + six) ** number(0.5), (number(3.0) - six) ** number(0.5)
    rule = [(x, 1 / (4 * (3 + six))) for x in (outer, -outer)] + [(x, 1 / (4 * (3 - six))) for x in (inner, -inner)]
    F = len(pairs) * d
    M, b, power = number(np.zeros((F, F))), number(np.zeros(F)), number(0.0)
    a, c = (np.asarray(index) for index in zip(*pairs, strict=True))
    for chance, Gamma, w in laws(problem, share, number):
        wishart = Gamma[a][:, a] * Gamma[c][:, c] + Gamma[a][:, c] * Gamma[c][:, a]
        for chosen in itertools.product(rule, repeat=d):
            weight = chance * np.prod([p for _, p in chosen])
            x = root @ np.asarray([node for node, _ in chosen])
            q = np.concatenate([x, number([0.0])])
            for n in contexts:
                f = number(problem.factor(n))
                mean = f * (n * Gamma[a, c] + q[a] * q[c])
                second = np.outer(mean, mean) + f**2 * n * wishart
                share_of = weight / len(contexts)
                M = M + share_of * np.kron(second, np.outer(x, x))
                b = b + share_of * (w @ x) * np.kron(mean, x)
            power = power + weight * (w @ x) ** 2
    return M, b, power


def blocks_field(problem: Problem) -> Field | None:
    """Row and W, or row, key and query: minus half the gradient of power - 2 t.b + t^T M t."""
    attention, d = problem.attention, len(problem.regression.spectrum)
    if d > 2 or len(problem.contexts) > 1:
        return None  # too many nodes for thirty digits
    M, b, _ = feature_moments(problem, problem.regression.in_context, problem.contexts)
    pairs = list(itertools.combinations_with_replacement(range(d + 1), 2))
    H, e = attention.heads, d + 1

    def slope(row: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """-(1/2) dL of rows and key-query matrices."""
        T = np.sum([row[h][:, None, None] * W[h][None] for h in range(H)], axis=0)
        t = np.concatenate([T[i, j] + (T[j, i] if i != j else 0) for i, j in pairs])
        residual = (b - M @ t).reshape(len(pairs), d)
        P = np.empty((e, e, d), object)
        for number, (i, j) in enumerate(pairs):
            P[i, j] = P[j, i] = residual[number]
        return np.asarray([np.sum(P * W[h][None], axis=(1, 2)) for h in range(H)]), np.asarray(
            [np.sum(P * row[h][:, None, None], axis=0) for h in range(H)]
        )

    def separate(flat: np.ndarray) -> np.ndarray:
        assert isinstance(attention, SeparateHeads)
        R = attention.rank
        row, key = flat[: H * e].reshape(H, e), flat[H * e : H * e * (1 + R)].reshape(H, R, e)
        query = flat[H * e * (1 + R) :].reshape(H, R, d)
        drow, dW = slope(row, np.asarray([sum(np.outer(key[h, r], query[h, r]) for r in range(R)) for h in range(H)]))
        dkey = [dW[h] @ query[h, r] for h in range(H) for r in range(R)]
        dquery = [key[h, r] @ dW[h] for h in range(H) for r in range(R)]
        return np.concatenate([drow.ravel(), *dkey, *dquery])

    def merged(flat: np.ndarray) -> np.ndarray:
        return np.concatenate([part.ravel() for part in slope(flat[: H * e].reshape(H, e), flat[H * e :].reshape(H, e, d))])

    return Field(WHOLE, merged if isinstance(attention, MergedHeads) else separate)


FIELDS: Mapping[tuple[str, str], Callable[[Problem], Field | None]] = {
    ("linear.separate", "reduced"): separate_reduced,
    ("linear.separate", "population"): separate_weights,
    ("linear.merged", "reduced"): merged_reduced,
    ("linear.merged", "population"): merged_weights,
    ("linear.blocks", "reduced"): blocks_field,
}
