"""A recorded run, trained again here: the same data, the same start, plain full-batch descent, by any of the roads to the loss.

The script's conventions are kept as they are: no 1/N in front of the scores, loss = mean squared error (so that its learning rate lr is
2 lr for our trainer, which descends half of it); with varying lengths the loss is the mean over contexts 1 to N and outputs are divided by
the number of tokens. Merged scores of the query are token_q . (kq @ token_m), so our key-query matrix is kq transposed.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from simulate import loss as losses
from simulate.attention import AbstractModel, MergedAttention, SeparateAttention
from simulate.recording import Recording
from simulate.tasks import Prompts, prefixes
from simulate.train import Step, descend, sgd, stack
from spectral_ode.problem import BadInput

METHODS = ("auto", "moments", "gram", "attention")


def replay(
    recording: Recording,
    *,
    dtype: str = "float64",
    method: str = "auto",
    nudge: int | None = None,
    tell: Callable[[int, float], None] | None = None,
) -> dict[str, np.ndarray]:
    """The loss curves of the replay, by the names of the recorded ones; `nudge` is the seed of a change of the start in its last bit."""
    method = method_of(recording, method)
    optimizer = sgd(2 * recording.lr)
    sets = {name: _loss(prompts(recording, name, dtype), method) for name in recording.data}
    tests = {name: stack([loss]) for name, loss in sets.items() if name != "training"}
    step = Step(None, optimizer, None, stack([sets["training"]]), tests, 0, method)
    _, observed = descend(step, stack([model(recording, dtype, nudge)]), np.arange(recording.epochs), tell)
    curves = {"training": np.asarray(observed["loss"][0])}
    return curves | {name: np.asarray(observed["tests"])[0, :, index] for index, name in enumerate(tests)}


def method_of(recording: Recording, method: str) -> str:
    """The road to the loss; moments where they apply."""
    if recording.softmax and method in ("moments", "gram"):
        raise BadInput(f"--method is {method} and the run has softmax attention, but that is for linear attention; use --method attention")
    if method != "auto":
        return method
    return "attention" if recording.softmax else "moments"


@eqx.filter_jit
def _loss(prompts: Prompts, method: str) -> losses.AbstractLoss:
    return losses.of_prompts(prompts, method)


def model(recording: Recording, dtype: str, nudge: int | None = None) -> AbstractModel:
    """The recorded start in our layout."""
    heads, e = recording.heads, recording.start["value"].shape[1]
    start = recording.start
    if nudge is not None:  # every weight moves by half a unit in the last place of float32, up or down
        random = np.random.default_rng(nudge)
        start = {name: part * (1 + random.choice([-1, 1], part.shape) * 2.0**-24) for name, part in start.items()}
    cut = {name: jnp.asarray(part.reshape(heads, -1, e), dtype) for name, part in start.items()}
    if recording.kind == "merged":
        return MergedAttention(cut["value"], jnp.swapaxes(cut["kq"], 1, 2), recording.softmax)
    return SeparateAttention(cut["value"], cut["key"], cut["query"], recording.softmax)


def prompts(recording: Recording, name: str, dtype: str) -> Prompts:
    """A recorded set as prompts; tests are on the full length, as in the script."""
    x, y = recording.data[name]
    tokens, labels = jnp.asarray(np.swapaxes(x, 1, 2), dtype), jnp.asarray(y[:, :, -1], dtype)
    last = x.shape[1] - 1
    contexts = tuple(range(1, last + 1)) if recording.vary_len and name == "training" else (last,)
    factors = tuple(1.0 / (n + 1) if recording.vary_len else 1.0 for n in contexts)
    return prefixes(tokens, labels, contexts, factors)
