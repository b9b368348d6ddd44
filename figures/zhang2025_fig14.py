"""Figure 14 of arXiv:2501.16265: in-weight learning comes first, then in-context learning takes over."""

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 14"
SECONDS = (10, 5)
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
NAMES = ("in-weight test", "in-context test")
CAPTION = (
    "A share p of the sequences has a task of its own, the others share one fixed task; merged key and query, white covariance, "
    "the authors' units. Pale: training loss (blue) and the two test losses of attention trained on 5,000 sequences; dashed: the "
    "exact population flow of every block from the same start (ours), no fit. In-weight learning is transient for 0 < p < 1. With "
    "p = 0 context labels are pure noise, and the training loss is the in-weight one."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset over shares."""
    base = panels.small(document.load("zhang2025-fig14"), fast, points=200, training__sequences=500, training__test_sequences=500)
    return {f"share {share:g}": panels.varied(base, task__in_context=share) for share in (SHARES[::3] if fast else SHARES)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """One panel per share."""
    with plt.style.context(style.STYLE):
        figure, grid = style.grid(width, -(-len(experiments) // 3), 3, height=2.4, across=2, share="xy")
        for axes in grid[len(experiments) :]:
            axes.set_axis_off()
        for letter, axes, experiment in zip("abcdef", grid, experiments.values(), strict=False):
            training, flow, eta = experiment.rungs["training"], experiment.rungs["reduced"], experiment.problem.eta
            curves = [("training", training["loss"][0], flow["loss"][0])]
            curves += [(name, training["tests"][0, :, i], flow["tests"][0, :, i]) for i, name in enumerate(NAMES)]
            for index, (name, trained, exact) in enumerate(curves):
                axes.plot(training.time[0] / eta, trained, color=style.pale(index), linewidth=3.2, label=name)
                axes.plot(flow.time[0] / eta, exact, label="exact flow, every block" if index == 2 else None, **panels.DASHED)
            panels.title(axes, letter, f"$p = {experiment.problem.regression.in_context:g}$")
            axes.set_xlim(0, experiment.problem.horizon)
            axes.set_ylim(0, 2.6)
        style.outer(grid, x="epoch", y="loss")
        style.legend(figure, grid[0], ncols=4)
    return figure
