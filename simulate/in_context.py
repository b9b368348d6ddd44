r"""Training on fresh sparse regression tasks: every step draws tasks, a context each, and queries whose noiseless labels are wanted.

Adam on the mean over queries of min((yhat - <w*, x_q>)^2, CLIP), with a clipped gradient and a learning rate that warms up over a
twenty-fifth of the steps and then falls like a cosine. Outputs of linear attention are polynomials of high degree in the tokens: without
the ceiling one unlucky context undoes a training. The risk that is reported has the same ceiling.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from simulate.mesh import ALONE, Deal, mean, spread
from simulate.normals import threefry
from spectral_ode.systems.sparse.data import Law, Sample

PIECE = 512  # tasks that are made at once, unless told otherwise
CLIP = 25.0  # of a squared error; labels have variance s + sigma^2


class Learner(Protocol):
    """A model that learns in context."""

    def answer(self, x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d"]) -> Float[Array, " q"]:
        """The labels of queries, from the labelled tokens of a context."""
        ...


Model = TypeVar("Model", bound=eqx.Module)


class Episodes(eqx.Module):
    """Tasks with their contexts and queries, along a leading axis."""

    context: Sample
    queries: Float[Array, "tasks q d"]

    @classmethod
    def draw(cls, law: Law, key: PRNGKeyArray, *, tasks: int, queries: int, dtype: str = "float32", first: Array | int = 0) -> "Episodes":
        """Fresh ones, from number `first` of all that the key has."""
        one, two = jax.random.split(key)
        return cls(law.samples(one, tasks, dtype, first), threefry(two, (tasks, queries, law.d), jnp.dtype(dtype), first))

    @property
    def targets(self) -> Float[Array, "tasks q"]:
        """Noiseless labels of the queries."""
        return jnp.einsum("tqd,td->tq", self.queries, self.context.w)

    def answers(self, model: Any) -> Float[Array, "tasks q"]:
        """What a model says."""
        return jax.vmap(model.answer)(self.context.x, self.context.y, self.queries)

    def risk(self, model: Any) -> Float[Array, ""]:
        """Mean squared error, each with its ceiling."""
        return jnp.mean(jnp.minimum((self.answers(model) - self.targets) ** 2, CLIP))


def adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    """Adam with warm-up, cosine and clipped gradients."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max(1, steps // 25), max(2, steps))
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule))


@eqx.filter_jit
def advance(
    model: Model,
    state: Any,
    optimizer: optax.GradientTransformation,
    law: Law,
    key: PRNGKeyArray,
    steps: Int[Array, " steps"],
    tasks: int,
    queries: int,
    loss: Callable[[Any, Episodes], Float[Array, ""]] | None = None,
    deal: Deal = ALONE,
) -> tuple[Model, Any]:
    """The model after these steps, each of which draws its own episodes; a loss is a mean over them."""
    objective = (lambda model, episodes: episodes.risk(model)) if loss is None else loss

    def one(carry, number, key):
        model, state = carry
        draw = lambda first, size: Episodes.draw(law, jax.random.fold_in(key, number), tasks=size, queries=queries, first=first)
        part = lambda first, size: jax.grad(objective)(model, draw(first, size))
        gradient = mean(part, tasks, deal.size(tasks, PIECE), deal)
        with jax.numpy_dtype_promotion("standard"):  # Optax counts steps in int32
            updates, state = optimizer.update(gradient, state, cast(Any, model))
        return (eqx.apply_updates(model, updates), state), None

    arrays, static = eqx.partition((model, state), eqx.is_array)

    def all_steps(arrays, steps, key):
        def step(arrays, number):
            return eqx.filter(one(eqx.combine(arrays, static), number, key)[0], eqx.is_array), None

        return jax.lax.scan(step, arrays, steps)[0]

    return eqx.combine(spread(all_steps, deal, arrays, steps, key), static)
