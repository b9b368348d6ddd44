"""A thousand scalar saddle ODEs by the inverted closed form, and by Diffrax, against scipy.

dv/dt = g v^2 - lam C v^5 for the four directions of `saddle-to-saddle`, 250 starts each, so small that the drops are spread over the clock
of 500 times: a long plateau, in which an error of the solver becomes an error of the drop's time. Ours is `Separate.closed_form`, all 1000
in one call, and `spectral_ode.batch`, 250 members with four unknowns. scipy integrates 20 of the 1000 one after the other, and its time is
multiplied by 50. Errors are the largest |v - truth| / v* at all times of those 20; the truth is t(v) inverted with 40 digits by mpmath,
bisected from nothing but the formula, and Radau at 1e-12 says that the formula solves the ODE.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import CORES, Options, Row, clock, in_turns

STARTS, TIMES, TIMED = 250, 500, 20
HORIZON = 100_000.0
DOORS = {"solve_ivp LSODA 1e-8": 1e-8, "odeint 1e-8": 1e-8, "solve_ivp LSODA 1e-12": 1e-12, "odeint 1e-12": 1e-12}
GOAL = "solve_ivp LSODA 1e-8"


class Curves(NamedTuple):
    """The system, starts [members, directions], and the clock."""

    system: Any
    starts: np.ndarray
    times: np.ndarray

    def scalar(self, number: int) -> tuple[float, float, float]:
        """g, lam C and the start of one of the scalar ODEs."""
        data, (member, d) = self.system.data, divmod(number, self.starts.shape[1])
        return float(data.g[d]), float(data.lam[d] * data.C[d]), float(self.starts[member, d])


def prepare(count: int, points: int) -> Curves:
    """Starts whose drops are spread over the middle of the clock."""
    import spectral_ode as so

    problem = so.load("saddle-to-saddle")
    system = so.systems.load(problem.system).from_problem(problem)
    drop = np.random.default_rng(0).uniform(0.1, 0.9, (count, system.data.g.size)) * HORIZON
    return Curves(system, 1 / (np.asarray(system.data.g) * drop), np.linspace(0.0, HORIZON, points))


def inverted(curves: Curves) -> Callable[[], np.ndarray]:
    """The closed form of all, [members, time, directions]."""
    import jax

    one = lambda v0: jax.vmap(lambda t: curves.system.closed_form(t, v0))(curves.times)
    every = jax.jit(jax.vmap(one))
    return lambda: np.asarray(every(curves.starts))


def solved(curves: Curves) -> Callable[[], np.ndarray]:
    """The same by Diffrax."""
    import jax

    from spectral_ode import batch
    from spectral_ode.systems.linear.separate import State

    settings = batch.Settings("dopri8", phases=False, keep=("v",))

    def all_of_them() -> np.ndarray:
        parts = batch.groups(batch.stack(curves.system, jax.vmap(State)(curves.starts), 1e-11, 1e-15))
        found = [part.observables["v"] for part in batch.each(lambda part: batch.solve(part, curves.times, settings), parts, workers=CORES)]
        return np.concatenate([np.asarray(part) for part in found])[: len(curves.starts)]

    return all_of_them


def scipy(curves: Curves, number: int, door: str, rtol: float) -> np.ndarray:
    """One scalar ODE as a scipy user solves it."""
    from scipy.integrate import odeint, solve_ivp

    g, c, v0 = curves.scalar(number)
    field, times = lambda t, v: g * v**2 - c * v**5, curves.times
    atol = rtol * v0
    if door.startswith("odeint"):
        return odeint(field, v0, times, rtol=rtol, atol=atol, tfirst=True, mxstep=100_000)[:, 0]
    return solve_ivp(field, (0.0, times[-1]), [v0], method=door.split()[1], t_eval=times, rtol=rtol, atol=atol).y[0]


def exact(curves: Curves, number: int) -> np.ndarray:
    """t(v) of one scalar ODE, inverted with 40 digits."""
    import mpmath

    with mpmath.workdps(40):
        g, c, v0 = (mpmath.mpf(part) for part in curves.scalar(number))
        limit = mpmath.cbrt(g / c)
        root = mpmath.sqrt(3)
        clock = lambda s: mpmath.log(1 + 3 * s / (1 - s) ** 2) / 6 - mpmath.atan((2 * s + 1) / root) / root - 1 / s
        begin = clock(v0 / limit)
        found, low = [], v0 / limit
        for t in curves.times:  # v grows, and so does the lower end
            wanted = begin + g * limit * mpmath.mpf(float(t))
            bottom, top = low, mpmath.mpf(1)
            while top - bottom > mpmath.mpf("1e-20") * bottom:
                middle = (bottom + top) / 2
                bottom, top = (middle, top) if clock(middle) < wanted else (bottom, middle)
            low = bottom
            found.append(float(bottom * limit))
        return np.array(found)


def run(options: Options) -> Iterator[Row]:
    count, points, timed = (8, 20, 2) if options.small else (STARTS, TIMES, TIMED)
    curves = prepare(count, points)
    limits, total = np.asarray(curves.system.limit), curves.starts.size
    numbers = list(range(0, total, total // timed))[:timed]
    truth = np.stack([exact(curves, number) for number in numbers])
    scale = limits[np.array(numbers) % limits.size][:, None]
    pick = lambda found: np.moveaxis(found, 2, 1).reshape(total, -1)[numbers]
    error = lambda found: float(np.max(np.abs(found - truth) / scale))
    call, diffrax = inverted(curves), solved(curves)
    compiling, mine = clock(call)
    answers = {"ours": pick(mine), "diffrax": pick(diffrax())}
    stiff = np.stack([scipy(curves, number, "solve_ivp Radau", 1e-12) for number in numbers[:4]])
    print(f"    Radau 1e-12 against the truth: {np.max(np.abs(stiff - truth[:4]) / scale[:4]):.1e}", flush=True)

    def loop(door: str) -> float:
        took, answers[door] = clock(lambda: np.stack([scipy(curves, number, door, DOORS[door]) for number in numbers]))
        return took * total / timed

    several = {door: lambda door=door: loop(door) for door in DOORS}
    took = in_turns(options.rounds, ours=lambda: clock(call)[0], diffrax=lambda: clock(diffrax)[0], **several)
    errors = {name: error(found) for name, found in answers.items()}
    what = f"{total} scalar saddles x {points} times"
    for door in DOORS:
        goals = {"at_least": 100, "error_below": 1e-10} if door == GOAL else {}
        yield Row(f"{what}, inverted", took["ours"], door, took[door], errors=(errors["ours"], errors[door]), **goals)
    ratios = [other / (ours + compiling) for ours, other in zip(took["ours"], took[GOAL], strict=True)]
    yield Row(
        f"{what}, inverted, with compilation",
        [compiling + ours for ours in took["ours"]],
        GOAL,
        took[GOAL],
        ratios,
        errors=(errors["ours"], errors[GOAL]),
    )
    for door in (GOAL, "odeint 1e-12"):
        yield Row(f"{what}, Diffrax 1e-11", took["diffrax"], door, took[door], errors=(errors["diffrax"], errors[door]))
