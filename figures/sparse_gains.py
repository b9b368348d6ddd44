"""How the construction is learned: training of gains and step size over their ODE, equal and unequal gains."""

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, sparse_overlay, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2408.04532, ours"
SECONDS = (60, 6)
CAPTION = (
    "Head gains and step size of the two-layer construction, trained on fresh tasks (pale) and by their ODE (dashed, same start, no fit; "
    "ours). a, b: unequal gains are activated one after another, larger ones first. c: equal gains wait on one plateau and rise together."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Unequal gains, as the preset has them, and equal ones."""
    preset = document.load("head-activation")
    quick = {"task__context": 32, "task__dimension": 8, "training__tasks": 64, "runs": 1, "training__learning_rate": 0.02}
    equal = panels.varied(preset, start__scale=0.1, start__ratio=1.0, horizon=14.0, runs=1)
    return {name: panels.small(problem, fast, **quick) for name, problem in (("unequal", preset), ("equal", equal))}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Three panels."""
    with plt.style.context(style.STYLE):
        figure, axes = style.grid(width, 1, 3, height=2.8)
        sparse_overlay.risk(axes[0], experiments["unequal"])
        sparse_overlay.activation(axes[1], experiments["unequal"])
        sparse_overlay.activation(axes[2], experiments["equal"])
        axes[0].legend().remove()  # one for the whole figure
        style.legend(figure, axes[0], ncols=2)
        panels.title(axes[0], "a", "unequal gains: risk")
        panels.title(axes[1], "b", "one head after another")
        panels.title(axes[2], "c", "equal gains")
    return figure
