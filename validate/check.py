"""Claims measured on an experiment: verdicts with numbers."""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from spectral_ode import weights
from spectral_ode.claims import Agrees, Claim, Conserved, Drops, Exact, Identity, Limit, Trial
from validate import universal
from validate.experiment import Experiment
from validate.metrics import METRICS, Measured, Unmet, count_drops
from validate.sparse import SPARSE
from validate.spectral import SPECTRAL
from validate.spectral_trials import SPECTRAL_TRIALS
from validate.trials import TRIALS


@dataclass(frozen=True)
class Verdict:
    """A claim with what was measured; `ok` is None where a condition was not met, and the note says which."""

    claim: str
    measured: float | None
    bound: float
    ok: bool | None
    note: str
    place: str
    exactness: str
    reason: str


def check(experiment: Experiment, *, tiers: tuple[str, ...] = ("run",)) -> list[Verdict]:
    """A verdict on each claim of the experiment's system and on those of every system, after one on each rung having come to its end."""
    return [ended(name, experiment) for name in experiment.rungs] + [judge(claim, experiment) for claim in claims_of(experiment, tiers)]


def claims_of(experiment: Experiment, tiers: tuple[str, ...]) -> list[Claim]:
    """The claims of an experiment's system, and those of every system."""
    claims = (*experiment.system.claims(experiment.problem), *universal.claims(experiment))
    return [claim for claim in claims if claim.tier in tiers]


def ended(name: str, experiment: Experiment) -> Verdict:
    """Whether a rung came to its end."""
    rung = experiment.rungs[name]
    failed = [run for run in rung.provenance.get("runs", [rung.provenance]) if not run.get("ok", True)]
    note = failed[0]["stopped"] if failed else rung.stopped.partition(";")[0]
    reason = "a trajectory that stopped early proves nothing"
    return Verdict(f"{name}: ran to its end", float(len(failed)), 0.0, not failed, note, "", "", reason)


def judge(claim: Claim, experiment: Experiment) -> Verdict:
    """What is measured of one claim."""
    try:
        measured, note = _measure(claim, experiment)
    except Unmet as unmet:
        return Verdict(claim.name, None, claim.bound, None, str(unmet), claim.place, claim.exactness, claim.reason)
    except Exception as error:  # a claim that breaks must not lose what all others say
        measured, note = np.nan, f"it could not be measured: {type(error).__name__}: {error}".splitlines()[0]
    # A number that is not a number must not pass, and has no place in a report.
    ok = bool(measured <= claim.bound)
    if claim.beyond:
        ok, note = None, claim.beyond
    return Verdict(
        claim.name, measured if np.isfinite(measured) else None, claim.bound, ok, note, claim.place, claim.exactness, claim.reason
    )


def _measure(claim: Claim, experiment: Experiment) -> Measured:
    for name in ("rung", "first", "second"):
        if (rung := getattr(claim, name, None)) in experiment.missing:
            raise Unmet(experiment.missing[rung])
    if isinstance(claim, Identity):
        return _identity(claim, experiment), "at random weights"
    if isinstance(claim, Exact):
        if "reduced" in experiment.missing:
            raise Unmet(experiment.missing["reduced"])
        return _exact(claim, experiment), f"over {experiment.rungs['reduced'].time.shape[-1]} points"
    if isinstance(claim, Conserved):
        return _drift(claim, experiment), ""
    if isinstance(claim, Limit):
        return _limit(claim, experiment)
    if isinstance(claim, Drops):
        return _drops(claim, experiment)
    if isinstance(claim, Trial):
        return claim.trial(experiment)
    assert isinstance(claim, Agrees)
    if claim.metric in (trials := TRIALS | SPECTRAL_TRIALS | SPARSE):
        return trials[claim.metric](experiment)
    return (METRICS | SPECTRAL)[claim.metric](experiment, claim.first, claim.second)


def _identity(claim: Identity, experiment: Experiment) -> float:
    start = weights.draw(replace(experiment.problem, start=replace(experiment.problem.start, scale=5.0)))
    left, right = eqx.filter_jit(lambda start: (claim.left(start), claim.right(start)))(start)
    sides = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(float(jnp.max(jnp.abs(left - right)) / jnp.max(jnp.abs(right))) for left, right in sides)


def _exact(claim: Exact, experiment: Experiment) -> float:
    rung = experiment.rungs["reduced"]
    distance = eqx.filter_jit(lambda time, observed, start: jnp.max(claim.distance(time, observed, start)))
    worst = []
    for index, start in enumerate(experiment.states):
        member = rung.run(index)
        worst.append(float(distance(member.time[1:], {name: array[1:] for name, array in member.observables.items()}, start)))
    return max(worst)


def _drift(claim: Conserved, experiment: Experiment) -> float:
    rung = experiment.rungs[claim.rung]
    value = np.asarray(claim.quantity(rung.observables))
    return float(np.max(np.abs(value - value[:, :1])) / claim.scale(rung.observables))


def _limit(claim: Limit, experiment: Experiment) -> Measured:
    rung = experiment.rungs[claim.rung]
    value = np.asarray(rung[claim.observable])
    if value.shape[1] < 2:
        raise Unmet("the trajectory ended at its start")
    # Only runs that are past the phase and at rest can be asked where they ended.
    arrived = np.isfinite(np.asarray(rung.phases[claim.after])) & (np.abs(value[:, -1] / value[:, -2] - 1) < claim.bound)
    if not arrived.any():
        raise Unmet("no run came to rest there within the horizon")
    apart = np.abs(value[:, -1] / np.asarray(claim.value) - 1)
    return float(np.max(apart[arrived])), f"{int(arrived.sum())} of {arrived.size} runs came to rest within the horizon"


def _drops(claim: Drops, experiment: Experiment) -> Measured:
    rung = experiment.rungs[claim.rung]
    counts = [count_drops(np.asarray(time), np.asarray(loss)) for time, loss in zip(rung.time, rung["loss"], strict=True)]
    if not any(counts):
        raise Unmet("no drop within the horizon")
    typical = float(np.median(counts))
    wanted = f"{claim.least}" if claim.least == claim.most else f"{claim.least} to {claim.most}"
    return max(claim.least - typical, typical - claim.most, 0.0), f"{', '.join(map(str, counts))} drops in the runs, {wanted} wanted"
