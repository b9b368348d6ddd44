"""The verdicts on a problem one by one, those that cost least first: for whoever wants to know only whether one of them fails."""

import contextlib
from collections.abc import Iterable, Iterator

from spectral_ode import systems, weights
from spectral_ode.claims import Claim
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory
from validate import formulas
from validate.check import Verdict, claims_of, ended, judge
from validate.experiment import Experiment, match, perform
from validate.tiers import TIERS


class _NotYet(Exception):
    """A rung is asked for that this stage does not have."""


class _None(dict[str, Trajectory]):
    """No rungs."""

    def __missing__(self, name: str) -> Trajectory:
        raise _NotYet


def staged(problems: dict[str, Problem]) -> Iterator[tuple[str, Verdict]]:
    """Closed forms of all problems; what can be asked of each without a rung; then the rest of each, with all rungs. With their names."""
    stages = [_stages(problem) for problem in problems.values()]
    for verdicts in zip(*stages, strict=True):
        for name, some in zip(problems, verdicts, strict=True):
            yield from ((name, verdict) for verdict in some)


def _stages(problem: Problem) -> Iterator[Iterator[Verdict]]:
    system, done = systems.load(problem.system).from_problem(problem), set()
    bare = Experiment(problem, system, _None(), {})
    yield _measured(formulas.claims(bare), bare, done)
    if "reduced" not in bare.missing:
        bare = Experiment(problem, system, _None(), *match(system, [weights.draw(problem)]))
    yield _measured(claims_of(bare, TIERS), bare, done)
    yield _whole(problem, done)


def _measured(claims: Iterable[Claim], bare: Experiment, done: set[str]) -> Iterator[Verdict]:
    for claim in claims:
        if claim.name not in done:
            with contextlib.suppress(_NotYet):
                verdict = judge(claim, bare)
                done.add(claim.name)
                yield verdict


def _whole(problem: Problem, done: set[str]) -> Iterator[Verdict]:
    experiment = perform(problem)
    yield from (ended(name, experiment) for name in experiment.rungs)
    yield from (judge(claim, experiment) for claim in claims_of(experiment, TIERS) if claim.name not in done)
