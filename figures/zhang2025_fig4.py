"""Figure 4 of arXiv:2501.16265: key and query of rank R make conspicuous plateaus at multiples of R."""

from matplotlib.figure import Figure

from figures import ranks, style
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 4"
SECONDS = (135, 12)
CAPTION = (
    "Rank of key and query, D = 8, nine heads, eigenvalues proportional to 1/d. Pale: training of all blocks, six runs; dashed: "
    "population flow from the same starts. Dark lines: plateau losses at multiples of the rank, where training dwells; faint "
    "lines: the others, which are passed."
)


def problems(fast: bool) -> dict[str, Problem]:
    """One problem per rank."""
    return ranks.at_ranks("zhang2025-fig4", (1, 2, 4, 8), fast)


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Four panels."""
    return ranks.draw(experiments, width)
