"""Prompts of in-context regression: each batch is a pure function of the seeds and its number.

x_n, x_q ~ N(0, Lambda), w ~ N(0, Sigma) per sequence, y_n = w.x_n + noise, y_q = w.x_q.  Prompt matrix (arXiv:2501.16265, Section 2):

    X = [x_1 ... x_N x_q; y_1 ... y_N 0]    of size (D+1) x (N+1)

In-context share p. The first int(p x sequences) sequences of a set have tasks of their own, the others share one fixed task. With p = 0, as
in the authors' script, the context labels are pure noise of variance one: only the weights can know the task.

Lengths. With `lengths = "all"` each sequence becomes N prompts: its first n tokens, then token n + 1 as the query, for n = 1 to N.

Sampling. With "iid" every number is an independent normal. With "even" a fixed data set covers the same law evenly: tasks and queries
come from a scrambled Sobol sequence, and each sequence comes with its mirror images x_d, w_d -> +-x_d, +-w_d in the eigenbasis, with
signs from the rows of a Hadamard matrix (so that the off-diagonal sampling error of E[y beta x_q^T] cancels). It matters because that
error kicks the heads that still wait on a plateau: at 80,000 iid sequences late drops move by several percent, which has nothing to
do with the theory under test. With "mirrored" each independent sequence comes with its image (x, w) -> -(x, w), which has the same labels:
then the gradient of the blocks that the paper starts at zero vanishes exactly. Every single sequence still has exactly the law above.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy.linalg import hadamard
from scipy.stats import qmc

from simulate import normals
from simulate.attention import Prompt
from spectral_ode.problem import Problem
from spectral_ode.systems.linear.data import directions, shared_task
from spectral_ode.weights import stream

BATCH = 4096  # sequences of a fixed data set are drawn in batches of this size
TESTS = {"in-weight": 0.0, "in-context": 1.0}  # the in-context share of the two test sets


class Prompts(eqx.Module):
    """A batch of prompt matrices, the query last, and the labels of their queries."""

    tokens: Float[Array, "prompts e n"]
    present: Bool[Array, "prompts n"]
    factor: Float[Array, " prompts"]
    target: Float[Array, " prompts"]

    def each(self) -> Prompt:
        """The prompts without their targets, to `vmap` over."""
        return Prompt(self.tokens, self.present, self.factor)


class Sampler(eqx.Module):
    """Draws prompts; a batch depends on the keys and its number, and on nothing else."""

    root: Float[Array, "d d"]  # a square root of Lambda
    task_root: Float[Array, "d d"]  # a square root of Sigma
    shared: Float[Array, " d"]
    noise: Float[Array, ""]
    keys: dict[str, PRNGKeyArray]
    images: Float[Array, "images d"]  # signs of each draw's mirror images in the eigenbasis
    even: Float[Array, "draws twice_d"] | None  # tasks and whitened queries, evenly spread; None: independent
    own: int | None = eqx.field(static=True)  # how many sequences of a set have a task of their own; None: all
    blind: bool = eqx.field(static=True)  # whether context labels are pure noise
    contexts: tuple[int, ...] = eqx.field(static=True)
    factors: tuple[float, ...] = eqx.field(static=True)

    @classmethod
    def from_problem(cls, problem: Problem, *, run: int = 0, test: str | None = None) -> "Sampler":
        """The sampler of one run, or of one of its test sets, in the float type of the problem's training."""
        dtype = problem.training.dtype
        lam, sig, basis = directions(problem)
        keys = {name: stream(problem, name, run) for name in ("task", "data", "noise")}
        sequences, share = problem.sequence_training.sequences, problem.regression.in_context
        contexts = problem.contexts
        if test is not None:
            keys = {name: jax.random.fold_in(key, 1 + list(TESTS).index(test)) for name, key in keys.items()}
            # As in the authors' script, tests are on the full context whatever the training is on.
            sequences, share, contexts = problem.sequence_training.test_sequences, TESTS[test], (problem.task.context,)
        sampling = problem.sequence_training.sampling if test is None else "iid"
        even = _even(problem, run, lam.size).astype(dtype) if sampling == "even" else None
        return cls(
            (basis * jnp.sqrt(lam)[None]).astype(dtype),
            (basis * jnp.sqrt(sig)[None]).astype(dtype),
            shared_task(problem).astype(dtype),
            jnp.asarray(problem.task.noise, dtype),
            keys,
            jnp.asarray(mirrors(sampling, lam.size), dtype),
            even,
            None if share == 1 else int(share * sequences),
            share == 0,
            contexts,
            tuple(problem.factor(context) for context in contexts),
        )

    def __call__(self, number: Array | int, sequences: int, *, first: Array | int = 0, row: Array | int = 0) -> Prompts:
        """Batch `number`, whose first sequence is number `first` of its set; or so many sequences of it from `row` on."""
        d, dtype, context = self.root.shape[0], self.root.dtype, max(self.contexts)
        keys = {name: jax.random.fold_in(key, number) for name, key in self.keys.items()}
        draws, begin = -(-sequences // self.images.shape[0]), row // self.images.shape[0]
        x = normals.threefry(keys["data"], (draws, d, context + 1), dtype, begin)
        if self.even is None:
            w = normals.threefry(keys["task"], (draws, d), dtype, begin)
        else:
            rows = jax.lax.dynamic_slice_in_dim(self.even, first // self.images.shape[0], draws)
            w, x = rows[:, :d], x.at[:, :, -1].set(rows[:, d:])
        w = (w[:, None] * self.images[None]).reshape(-1, d)[:sequences]
        x = (x[:, None] * self.images[None, :, :, None]).reshape(-1, d, context + 1)[:sequences]
        x = jnp.einsum("ab,sbn->san", self.root, x)
        w = jnp.einsum("ab,sb->sa", self.task_root, w)
        if self.own is not None:
            w = jnp.where((first + jnp.arange(sequences) < self.own)[:, None], w, self.shared[None])
        y = jnp.einsum("sd,sdn->sn", w, x)
        noise = normals.threefry(keys["noise"], (draws, context), dtype, begin)
        noise = jnp.repeat(noise, self.images.shape[0], axis=0)[:sequences]
        labels = noise if self.blind else y[:, :-1] + self.noise * noise
        whole = jnp.concatenate([x, jnp.pad(labels, ((0, 0), (0, 1)))[:, None]], axis=1)
        return prefixes(whole, y, self.contexts, self.factors)


def prefixes(tokens: Float[Array, "s e n"], y: Float[Array, "s n"], contexts: tuple[int, ...], factors: tuple[float, ...]) -> Prompts:
    """Prompts of the given context lengths from each sequence of labelled tokens; y are the labels of queries."""
    sequences, _, n = tokens.shape

    def one(context: int, factor: float) -> Prompts:
        query = tokens[:, :, context : context + 1].at[:, -1].set(0)
        gap = n - 1 - context
        cut = jnp.concatenate([jnp.pad(tokens[:, :, :context], ((0, 0), (0, 0), (0, gap))), query], axis=2)
        present = np.concatenate([np.arange(n - 1) < context, [True]])
        return Prompts(cut, jnp.broadcast_to(present, (sequences, n)), jnp.full((sequences,), factor, tokens.dtype), y[:, context])

    parts = [one(context, factor) for context, factor in zip(contexts, factors, strict=True)]
    # Prompts of one sequence stand together, so that a set can be cut after any sequence.
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:]), *parts)


def mirrors(sampling: str, d: int) -> np.ndarray:
    """Signs of the mirror images of a sequence: for even sampling, rows whose columns are orthogonal."""
    if sampling == "even":
        return hadamard(1 << (d - 1).bit_length())[:, :d]
    return np.array([[1.0], [-1.0]][: 2 if sampling == "mirrored" else 1]) * np.ones(d)


def _even(problem: Problem, run: int, d: int) -> Float[Array, "draws twice_d"]:
    """Standard normals from a scrambled Sobol sequence, enough for whole batches with their mirror images."""
    count = -(-problem.sequence_training.sequences // BATCH) * BATCH // mirrors("even", d).shape[0]
    points = qmc.Sobol(2 * d, rng=problem.seed.task + run).random(1 << (count - 1).bit_length())[:count]
    return jax.scipy.special.ndtri(jnp.clip(jnp.asarray(points), 1e-9, 1 - 1e-9))


def fixed(sampler: Sampler, sequences: int) -> Prompts:
    """A fixed data set: batches 0, 1, ... cut to the number of sequences."""
    batches = jax.lax.map(lambda number: sampler(number, BATCH, first=number * BATCH), jnp.arange(-(-sequences // BATCH)))
    kept = sequences * len(sampler.contexts)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:kept], batches)
