"""What a softmax transformer knows after each layer, and whether its first layer preprocesses."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from figures.sparse_masks import importance as preset
from simulate import adam
from simulate.importance import preprocessing_probe
from simulate.softmax_transformer import SoftmaxTransformer
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2408.04532, ours"
SECONDS = (360, 15)
STEPS = np.asarray([1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 200])
TASKS = 300
CAPTION = (
    "The softmax transformer of the masking map, probed. a: the risk of the best linear read-out of a query's state falls layer by "
    "layer, as steps of descent would (one line per seed). b: descent on the first layer's features (each x asked again as a query, "
    "so that no label leaks) against descent on x and on R x, first seed. The paper reports that the first layer's features learn "
    "faster; at this size they are ahead of x for the first few steps only, and far from the algorithm's own preprocessing."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset of head importance."""
    return {"heads": preset(fast)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Two panels."""
    full = experiments["heads"]
    training, model = full.rungs["training"], adam.model_of(full.problem, full.rungs["training"])
    assert isinstance(model, SoftmaxTransformer)
    episodes = jax.tree.map(lambda leaf: leaf[:TASKS], adam.held_out(full.problem, number=1))
    found = jax.jit(lambda episodes: preprocessing_probe(model, episodes, jnp.asarray(STEPS)))(episodes)
    with plt.style.context(style.STYLE):
        figure, (left, right) = style.grid(width, 1, 2, height=3.1)
        probes = np.median(np.asarray(training["probes"])[:, -1], axis=0)
        for run in np.asarray(training["probes"])[:, -1]:
            left.semilogy(range(probes.size), run, color=style.pale(0), linewidth=0.9)
        left.semilogy(range(probes.size), probes, "o-", color=style.color(0))
        for name, level in (
            ("the model itself", float(np.median(np.asarray(training["loss"])[:, -1]))),
            ("best ridge", float(full.system.landmarks()["loss"]["best ridge"])),
        ):
            left.axhline(level, color="0.7", linewidth=0.7, zorder=0)
            left.annotate(name, (0, level), (0, 2), textcoords="offset points", fontsize=style.SMALL, color="0.4")
        left.set_xticks(range(probes.size), ["embedding", *(f"layer {layer + 1}" for layer in range(probes.size - 1))])
        left.set_ylabel("risk of the probe")
        for name, words, index in (("phi", "features of layer 1", 3), ("x", "plain $x$", 0), ("R x", "preprocessed $R x$", 1)):
            right.loglog(STEPS, np.asarray(found[name]), "o-", markersize=3.5, color=style.color(index), label=words)
        right.set_xlabel(r"steps of descent, size $1/\lambda_{\max}$")
        right.set_ylabel("risk")
        right.legend(loc="best")
        panels.title(left, "a", "what each layer knows")
        panels.title(right, "b", "descent on the first layer's features")
    return figure
