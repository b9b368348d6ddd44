"""Figure 12 of arXiv:2501.16265: the same as Figure 4 for the other ranks, which do not divide the dimension."""

from matplotlib.figure import Figure

from figures import ranks, style
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 12"
SECONDS = (145, 15)
CAPTION = (
    "Ranks 3, 5, 6 and 7, otherwise as in Figure 4: training dwells at multiples of the rank and, at the end, at D = 8. Pale: "
    "training, six runs; dashed: population flow from the same starts; dark lines: plateau losses at multiples of the rank; faint "
    "lines: the others."
)


def problems(fast: bool) -> dict[str, Problem]:
    """One problem per rank."""
    return ranks.at_ranks("zhang2025-fig12", (3, 5, 6, 7), fast)


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Four panels."""
    return ranks.draw(experiments, width)
