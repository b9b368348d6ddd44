"""Which problems `python -m validate` answers, and the one call that answers and judges a problem.

Quick: a small problem for every system there is, chosen so that nearly all claims can be judged; the tests work on the same ones. A system
without a small problem here, such as one in a new file, gets the first preset that names it, or else the first small problem that it
accepts. Full: the quick problems with the claims that take longer, and every preset at its full size.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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

TIERS = ("run", "validate")  # of claims: those of the quick tier
EVERY = (*TIERS, "full")  # and those that take longer, too

SEPARATE = Problem(
    title="two heads learn two eigenvectors, one drop after the other",
    horizon=2500.0,
    points=500,
    task=Regression(spectrum=(0.6, 0.3), context=15),
    attention=SeparateHeads(heads=2),
    start=Start(scale=0.05),
    training=Training(sequences=80_000, sampling="even", dtype="float64", learning_rate=0.2),
)

# Finite L and small d matter here.
SPECTRAL = Problem(
    title="two unequal, noisy tasks emerge on two softmax heads",
    system="softmax.balanced",
    horizon=14.0,
    points=71,
    task=MultiTask(dimensions=(4, 5), signal=(1.0, 1.2), noise=0.3, context=20),
    attention=FullHeads(heads=2),
    start=DecomposableStart(scale=2.5),
    training=EpisodeTraining(contexts=64, queries=8, learning_rate=0.01, dtype="float64", test_contexts=1000),
)

DEPTH = Problem(
    title="layers as steps of descent on preprocessed features",
    system="sparse.depth",
    horizon=20.0,
    points=81,
    task=SparseRegression(dimension=16, sparsity=2, context=128),
    attention=Constructed(),
    start=ZeroStart(),
    training=DepthTraining(tasks=24, learning_rate=0.25),
)

GAINS = Problem(
    title="gains of preprocessing heads wake one after another",
    system="sparse.gains",
    horizon=8.0,
    points=81,
    task=SparseRegression(dimension=6, sparsity=2, context=32),
    attention=Constructed(),
    start=GainsStart(scale=0.4, ratio=0.4, step=0.2),
    training=GainsTraining(tasks=256, learning_rate=0.01),
)

WHITE = Problem(
    title="merged key and query: one drop, on the closed form of the white case",
    system="linear.merged",
    horizon=20.0,
    points=400,
    task=Regression(spectrum=(1.0, 1.0), context=15),
    attention=MergedHeads(heads=8),
    start=Start(scale=1e-4),
    training=Training(sequences=80_000, sampling="even", dtype="float64", learning_rate=0.01),
)

SHARED = Problem(
    title="six of ten sequences have their own task: in-weight learning comes and goes",
    system="linear.blocks",
    horizon=60.0,
    points=300,
    task=Regression(spectrum=(0.6, 0.3), context=15, in_context=0.6),
    attention=MergedHeads(heads=3),
    start=Start(scale=0.01),
    training=Training(sequences=5000, test_sequences=2000, dtype="float64", learning_rate=0.05),
)

# The equations of a phase are asymptotic in d and L, so these are large; no claim asks for much of the training.
PHASES = Problem(
    title="the equations of one phase against the flow of all three",
    system="softmax.emergence",
    horizon=30.0,
    points=121,
    task=MultiTask(dimensions=(10, 10), context=100),
    attention=FullHeads(heads=2),
    start=DecomposableStart(scale=4.0),
    training=EpisodeTraining(contexts=16, queries=4, learning_rate=0.05, test_contexts=200),
)

SMALL: dict[str, Problem] = {
    "linear.blocks": SHARED,
    "linear.merged": WHITE,
    "linear.separate": SEPARATE,
    "linear.separate, fresh data": replace(
        SEPARATE,
        title="the same by stochastic descent, on fresh sequences at every step",
        horizon=2000.0,
        points=200,
        start=Start(scale=0.1),
        training=Training(data="fresh", sequences=500, learning_rate=0.5, dtype="float64"),
    ),
    "softmax.warmup": replace(PHASES, system="softmax.warmup"),
    "softmax.emergence": PHASES,
    "softmax.slaved": replace(
        PHASES,
        system="softmax.slaved",
        horizon=10.0,
        task=MultiTask(dimensions=(10,), context=100),
        attention=FullHeads(heads=1, embedding=30),
        start=DecomposableStart(omega=0.01, mu=1.0, boost=1.0),
    ),
    "softmax.balanced": SPECTRAL,
    "softmax.factored": replace(
        SPECTRAL,
        title="one head per task is left for zero-sum superposition",
        system="softmax.factored",
        horizon=40.0,
        points=81,
        task=MultiTask(dimensions=(4, 4), context=20),
        start=DecomposableStart(scale=2.5, imbalance=0.05),
        training=EpisodeTraining(contexts=32, queries=4, learning_rate=0.04, test_contexts=400),
    ),
    "sparse.depth": DEPTH,
    "sparse.gains": GAINS,
}
APART = {"head-importance-gpu": "300,000 steps of a transformer of width 256 need a GPU"}  # presets that no tier answers


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
    """The quick tier: small problems by name, at least one for every system there is."""
    found = {name: [small for small in SMALL if SMALL[small].system == name] or [name] for name in systems.names()}
    return {small: of_system(small) for names in found.values() for small in names}


def full() -> dict[str, Problem]:
    """The full tier: the quick problems and every preset at its full size."""
    return quick() | {name: document.load(name) for name in document.preset_names() if name not in APART}


def asked(name: str, *, full: bool) -> tuple[str, ...]:
    """Of a problem, which tiers of claims: those that take longer are about equations and programs, the same at every size of a problem."""
    return EVERY if full and name in quick() else TIERS


def chosen(sources: list[str]) -> dict[str, Problem]:
    """Problems by name, from presets, TOML files and names of systems, whose small problems they stand for."""
    found: dict[str, Problem] = {}
    for source in sources:
        if source in SMALL or source in systems.names():
            found |= {name: problem for name, problem in quick().items() if source in (name, problem.system)}
        else:
            problem, stem = document.load(source), Path(source).stem
            systems.check(problem.system)
            found[next(name for name in (stem, *(f"{stem} {n}" for n in range(2, len(sources) + 2))) if name not in found)] = problem
    return found


def admitted(problems: dict[str, Problem]) -> None:
    """Raise `BadInput` for the first problem that its system does not admit, before any is worked on."""
    for name, problem in problems.items():
        try:
            systems.load(problem.system).from_problem(problem)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None


def judge(
    name: str, problem: Problem, progress: Progress | None = None, *, tiers: tuple[str, ...] = TIERS
) -> tuple[Experiment, list[Verdict]]:
    """Answer a problem on every rung and measure the claims about it that some tiers have."""
    experiment = perform(problem, progress)
    if progress:
        progress.stage(f"{name}: claims")
    return experiment, check(experiment, tiers=tiers)
