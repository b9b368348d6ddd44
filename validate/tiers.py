"""Which problems `python -m validate` answers, and the one call that answers and judges a problem.

Quick: a small problem for every system there is, chosen so that nearly all claims can be judged; the tests work on the same ones. A system
without a small problem here, such as one in a new file, gets the first preset that names it, or else the first small problem that it
accepts. Full: the quick problems and every preset at its full size.
"""

from collections.abc import Iterator
from dataclasses import replace

from spectral_ode import document, systems
from spectral_ode.problem import (
    BadInput,
    DecomposableStart,
    EpisodeTraining,
    FullHeads,
    MergedHeads,
    MultiTask,
    Problem,
    Regression,
    SeparateHeads,
    Start,
    Training,
)
from spectral_ode.sections.sparse import Constructed, DepthTraining, GainsStart, GainsTraining, SparseRegression, ZeroStart
from validate.check import Verdict, check
from validate.experiment import Experiment, Progress, perform

TIERS = ("run", "validate")  # of claims: all of them

# Two eigenvectors on two heads, full batch.
SEPARATE = Problem(
    horizon=2500.0,
    points=500,
    task=Regression(spectrum=(0.6, 0.3), context=15),
    attention=SeparateHeads(heads=2),
    start=Start(scale=0.05),
    training=Training(sequences=80_000, sampling="even", dtype="float64", learning_rate=0.2),
)

# Two unequal, noisy tasks on two softmax heads; finite L and small d matter here.
SPECTRAL = Problem(
    system="softmax.balanced",
    horizon=14.0,
    points=71,
    task=MultiTask(dimensions=(4, 5), signal=(1.0, 1.2), noise=0.3, context=20),
    attention=FullHeads(heads=2),
    start=DecomposableStart(scale=2.5),
    training=EpisodeTraining(contexts=64, queries=8, learning_rate=0.01, dtype="float64", test_contexts=1000),
)

DEPTH = Problem(
    system="sparse.depth",
    horizon=20.0,
    points=81,
    task=SparseRegression(dimension=16, sparsity=2, context=128),
    attention=Constructed(),
    start=ZeroStart(),
    training=DepthTraining(tasks=24, learning_rate=0.25),
)

GAINS = Problem(
    system="sparse.gains",
    horizon=8.0,
    points=81,
    task=SparseRegression(dimension=6, sparsity=2, context=32),
    attention=Constructed(),
    start=GainsStart(scale=0.4, ratio=0.4, step=0.2),
    training=GainsTraining(tasks=256, learning_rate=0.01),
)

SMALL: dict[str, Problem] = {
    "linear.separate": SEPARATE,
    "linear.merged": replace(SEPARATE, system="linear.merged", attention=MergedHeads(heads=3)),
    "linear.blocks": replace(SEPARATE, system="linear.blocks"),
    "softmax.balanced": SPECTRAL,
    "sparse.depth": DEPTH,
    "sparse.gains": GAINS,
}


def of_system(name: str) -> Problem:
    """A problem for a system: a small one, or else the first preset that names it, or else the first small problem that it accepts."""
    if name in SMALL:
        return SMALL[name]
    system, refusal = systems.load(name), BadInput(f"no small problem fits system {name}")
    for problem in _candidates(name):
        try:
            system.from_problem(problem)
        except BadInput as error:
            refusal = error
        else:
            return problem
    raise BadInput(f"neither a preset nor a small problem fits system {name}: {refusal}; name a .toml file")


def _candidates(name: str) -> Iterator[Problem]:
    presets = (document.load(preset) for preset in document.preset_names())
    yield from (problem for problem in presets if problem.system == name)
    yield from (replace(problem, system=name) for problem in (*SMALL.values(), Problem()))


def quick() -> dict[str, Problem]:
    """The quick tier: problems by name, every system among them."""
    return {name: of_system(name) for name in systems.names()}


def judge(name: str, problem: Problem, progress: Progress | None = None) -> tuple[Experiment, list[Verdict]]:
    """Answer a problem on every rung and measure all claims about it, also the slow ones."""
    try:
        experiment = perform(problem, progress)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    if progress:
        progress.stage("claims")
    return experiment, check(experiment, tiers=TIERS)
