"""The verdicts on a problem one by one, those that cost least first: for whoever wants to know only whether one of them fails."""

import contextlib
from collections.abc import Iterable, Iterator

from spectral_ode import systems, weights
from spectral_ode.claims import Claim, Identity, Trial
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory
from validate.check import Verdict, claims_of, ended, judge
from validate.experiment import Experiment, match, perform
from validate.referees import FORMS
from validate.tiers import TIERS

STAGES, CHEAP = 4, 2  # of a problem, as `_stages` gives them; those that need no course


class _NotYet(BaseException):
    """A rung is asked for that this stage does not have; no `Exception`, which would be a claim that breaks."""


class _None(dict[str, Trajectory]):
    """No rungs."""

    def __missing__(self, name: str) -> Trajectory:
        raise _NotYet


def staged(problems: dict[str, Problem], count: int = STAGES) -> Iterator[tuple[str, Verdict]]:
    """Closed forms of all problems; their identities; what else can be asked of each without a rung; then the rest. With their names."""
    stages = [_stages(problem) for problem in problems.values()]
    for _ in range(count):
        for name, stage in zip(problems, stages, strict=True):
            yield from ((name, verdict) for verdict in next(stage))


def _stages(problem: Problem) -> Iterator[Iterator[Verdict]]:
    system, done = systems.load(problem.system).from_problem(problem), set()
    unbegun = Experiment(problem, system, _None(), {}, [])
    yield _measured([claim for claim in claims_of(unbegun, TIERS) if claim.name == FORMS], unbegun, done)
    states = match(system, [weights.draw(problem)]) if "reduced" not in system.missing(problem) else ({}, [])
    bare = Experiment(problem, system, _None(), *states)
    claims = claims_of(bare, TIERS)
    yield _measured([claim for claim in claims if isinstance(claim, Identity)], bare, done)
    yield _measured(sorted(claims, key=lambda claim: not isinstance(claim, Trial)), bare, done)
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
