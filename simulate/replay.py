"""A recorded run, trained again here: the same data, the same start, plain full-batch descent, by any of the roads to the loss.

The scripts' conventions are kept as they are: no 1/N in front of the scores, loss = mean squared error (so that its learning rate lr is
2 lr for our trainer, which descends half of it); with varying lengths the loss is the mean over contexts 1 to N and outputs are divided by
the number of tokens. Merged scores of the query are token_q . (kq @ token_m), so our key-query matrix is kq transposed.

Data are prepared by numpy and cut into prompts inside one program: thirty small ones would take longer to compile than the training.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from simulate import loss as losses
from simulate.attention import MergedAttention, SeparateAttention
from simulate.descent import descend, sgd, stack
from simulate.full_attention import Episode, Episodes, FullAttention
from simulate.recording import Recording
from simulate.sequences import Step
from simulate.tasks import TESTS, prefixes
from spectral_ode.problem import BadInput


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
    sets = {name: loss(recording, name, dtype, method) for name in recording.data}
    tests = {name: stack([one]) for name, one in sets.items() if name != "training"}
    step = Step(None, sgd(2 * recording.lr), None, stack([sets["training"]]), tests, 0, method)
    _, observed = descend(step, stack([model(recording, dtype, nudge)]), np.arange(recording.epochs), tell)
    curves = {"training": np.asarray(observed["loss"][0])}
    return curves | {name: np.asarray(observed["tests"])[0, :, index] for index, name in enumerate(name for name in TESTS if name in tests)}


def method_of(recording: Recording, method: str) -> str:
    """The road to the loss; moments where they apply."""
    if recording.softmax and method in ("moments", "gram"):
        raise BadInput(f"--method is {method} and the run has softmax attention, but that is for linear attention; use --method attention")
    if method != "auto":
        return method
    return "attention" if recording.softmax else "moments"


def loss(recording: Recording, name: str, dtype: str, method: str) -> Any:
    """The loss over a recorded set; tests are on the full length, as in the script."""
    if recording.kind == "full":
        context, query, target = recording.data[name]
        return Episodes(Episode(*jax.device_put([part.astype(dtype) for part in (np.swapaxes(context, 1, 2), query, target)])))
    x, y = recording.data[name]
    tokens, labels = (jax.device_put(part.astype(dtype)) for part in (np.swapaxes(x, 1, 2), y[:, :, -1]))
    last = x.shape[1] - 1
    contexts = tuple(range(1, last + 1)) if recording.vary_len and name == "training" else (last,)
    factors = tuple(1.0 / (n + 1) if recording.vary_len else 1.0 for n in contexts)
    return _loss(tokens, labels, contexts, factors, method)


@eqx.filter_jit
def _loss(tokens: Array, labels: Array, contexts: tuple, factors: tuple, method: str) -> losses.AbstractLoss:
    return losses.of_prompts(prefixes(tokens, labels, contexts, factors), method)


def model(recording: Recording, dtype: str, nudge: int | None = None) -> Any:
    """The recorded start in our layout."""
    heads, start = recording.heads, recording.start
    e = start["value"].shape[1]
    if nudge is not None:  # every weight moves by half a unit in the last place of float32, up or down
        random = np.random.default_rng(nudge)
        start = {name: part * (1 + random.choice([-1, 1], part.shape) * 2.0**-24) for name, part in start.items()}
    if recording.kind == "full":
        start = start | {"output": start["output"].reshape(-1, heads, e).swapaxes(0, 1)}
    cut = {name: part.reshape(heads, -1, e).astype(dtype) for name, part in start.items()}
    if recording.kind == "merged":
        cut["kq"] = np.swapaxes(cut["kq"], 1, 2)
    cut = jax.device_put(cut)
    if recording.kind == "full":
        return FullAttention(**cut)
    if recording.kind == "merged":
        return MergedAttention(cut["value"], cut["kq"], recording.softmax)
    return SeparateAttention(cut["value"], cut["key"], cut["query"], recording.softmax)
