"""How rungs of softmax attention (arXiv:2402.19442) are compared: numbers with notes, as in `validate.metrics`."""

from collections.abc import Callable

import numpy as np

from spectral_ode import marchenko_pastur
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment
from validate.metrics import Measured, Unmet


def system_of(experiment: Experiment) -> AbstractSpectral:
    """The experiment's system, which is a spectral one."""
    assert isinstance(experiment.system, AbstractSpectral)
    return experiment.system


def emerged(*rungs: Trajectory) -> np.ndarray:
    """When the last task has entered convergence, in the latest of some rungs; nan where one has not. One number per run."""
    times = [np.asarray(time) for rung in rungs for name, time in rung.phases.items() if name.startswith("convergence ")]
    return np.max(np.stack(np.broadcast_arrays(*times)), axis=0)  # nan wins


def _both(experiment: Experiment, first: str, second: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    one, two = (np.asarray(experiment.rungs[rung][name]) for rung in (first, second))
    length = min(one.shape[1], two.shape[1])
    return one[:, :length], two[:, :length]


def late_loss(experiment: Experiment, first: str, second: str) -> Measured:
    """Mean relative gap of the loss after the last emergence, median over runs."""
    one, two = _both(experiment, first, second, "loss")
    since = emerged(experiment.rungs[first], experiment.rungs[second])
    time = np.asarray(experiment.rungs[first].time)[:, : one.shape[1]]
    gaps = [np.mean(np.abs(a / b - 1)[t >= begin]) for a, b, t, begin in zip(one, two, time, since, strict=True) if begin < t[-1]]
    if not gaps:
        raise Unmet("not every task has emerged within the horizon")
    ends = np.median(one[:, -1] / two[:, -1] - 1)
    return float(np.median(gaps)), f"{first} {100 * ends:+.1f} % of {second} at the end, worst run {100 * max(gaps):.1f} %"


def loss_gap(experiment: Experiment, first: str, second: str) -> Measured:
    """Largest gap of the loss over the whole course, as the curves stand, median over runs."""
    one, two = _both(experiment, first, second, "loss")
    worst = np.max(np.abs(one - two), axis=1)
    other = np.max(np.abs(np.subtract(*_both(experiment, first, "reduced", "loss"))), axis=1) if "reduced" in experiment.rungs else worst
    return float(np.median(worst)), f"worst run {np.max(worst):.3f}; against leading order {np.median(other):.3f}"


def above_bayes(experiment: Experiment, first: str, second: str) -> Measured:
    """Largest share of the Bayes risk (proportional limit, which is below that of finite size) that a task's loss undercuts."""
    tasks = system_of(experiment).order.tasks
    bayes = np.stack(
        [marchenko_pastur.bayes_risk(d / tasks.L, S=S, sigma2=tasks.sigma2) / S for d, S in zip(tasks.d, tasks.S, strict=True)]
    )
    losses = np.asarray(experiment.rungs[first]["task losses"])
    under = np.max((bayes - losses) / np.maximum(bayes, 1e-3))  # without noise the risk is zero, and so is what can be undercut
    closest = np.min(losses / np.maximum(bayes, 1e-300))
    note = "no noise: the Bayes risk is 0" if bayes.max() < 1e-12 else f"the loss stays {closest:.3g} times the Bayes risk or more"
    return float(max(under, 0.0)), note


def reach(experiment: Experiment, first: str, second: str) -> Measured:
    """Largest variance of a score over the largest of the tables."""
    return float(np.max(np.asarray(experiment.rungs[first]["reach"]))), ""


def outside(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the share of squared entries outside the spectrum at the end."""
    rung = experiment.rungs[first]
    share, spread = np.asarray(rung["outside"])[:, -1], np.max(np.asarray(rung["spread"])[:, -1])
    zeros = np.max(np.asarray(rung["zeros"])[:, -1], axis=0)
    return float(np.median(share)), f"norms of U_X, off-diagonal U_Y, W_Y, off-diagonal W_X: {zeros.round(4).tolist()}; spread {spread:.1e}"


def start_distance(experiment: Experiment, first: str, second: str) -> Measured:
    """Largest share, over the runs, of the start's squared entries that are outside the spectrum."""
    return float(np.max(np.asarray(experiment.rungs[first]["outside"])[:, 0])), ""


def same_heads(experiment: Experiment, first: str, second: str) -> Measured:
    """Share of learned tasks that two rungs give to different heads at the end."""
    one, two = (experiment.rungs[rung] for rung in (first, second))
    learned = (np.asarray(one["learned"])[:, -1] > 0.5) & (np.asarray(two["learned"])[:, -1] > 0.5)
    if not learned.any():
        raise Unmet("nothing was learned within the horizon")
    wrong = (np.asarray(one["head"])[:, -1] != np.asarray(two["head"])[:, -1]) & learned
    return float(wrong.sum() / learned.sum()), f"{int(learned.sum() - wrong.sum())} of {int(learned.sum())} right"


def other_lengths(experiment: Experiment, first: str, second: str) -> Measured:
    """Largest relative gap of the losses at other context lengths at the end, median over runs."""
    one, two = _both(experiment, first, second, "tests")
    if not np.isfinite(emerged(experiment.rungs[first])).all():
        raise Unmet("not every task has emerged within the horizon")
    gap = np.median(one[:, -1] / two[:, -1] - 1, axis=0)
    lengths = ", ".join(
        f"L' = {length}: {100 * value:+.1f} %"
        for length, value in zip([int(order.tasks.L) for order in system_of(experiment).tests], gap, strict=True)
    )
    return float(np.max(np.abs(gap))), f"{first} against {second} at {lengths}"


def escape(experiment: Experiment, first: str, second: str) -> Measured:
    """Loss at the end over the limit of one head per task, the worse of flow and training, median over runs."""
    limit = float(experiment.system.population().landmarks()["loss"]["one head per task"])
    ends = [float(np.median(np.asarray(experiment.rungs[rung]["loss"])[:, -1])) / limit for rung in (first, second)]
    return max(ends), f"{ends[0]:.2f} in the finite-L flow, {ends[1]:.2f} in training"


SPECTRAL: dict[str, Callable[[Experiment, str, str], Measured]] = {
    "late loss": late_loss,
    "loss gap": loss_gap,
    "above Bayes": above_bayes,
    "reach": reach,
    "outside the spectrum": outside,
    "start distance": start_distance,
    "same heads": same_heads,
    "other lengths": other_lengths,
    "escape": escape,
}
