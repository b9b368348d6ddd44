"""The first picture of a fresh process: the loss of a preset, computed and drawn, a png on disk; against a small scipy script.

Measured is a process from its start until the picture is on disk: interpreter, imports, compilation, solve, drawing. Cold: no program was
ever kept on disk; warm: the process before has kept them. There are two roads to the same curve: the closed form of the preset, for which
nothing is integrated and Diffrax is never imported, and the reduced ODE by Diffrax. All scripts draw with the same few lines of matplotlib,
whose fonts have been listed before (set-up). scipy is given the start of ours, and the losses of all are compared. `one-drop` has
D + 1 = 5 unknowns. In `saddle-to-saddle` the start of the four scalar ODEs is the forecast of all drops, which scipy is spared.
"""

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOALS = {"one-drop": (4.0, 2.0), "saddle-to-saddle": (None, None)}  # seconds cold, warm
ROADS = {"formula": "closed form", "ours": "reduced ODE by Diffrax"}


def _opened(preset: str) -> tuple[Any, Any, list[float], Any]:
    """A preset, its system, the laps so far, and what ends a lap; imports are part of the first."""
    laps = [time.perf_counter()]
    import spectral_ode as so

    so.configure()
    problem = so.load(preset)
    kind = so.systems.load(problem.system)
    done = lambda: laps.append(time.perf_counter())
    done()
    return problem, kind, laps, done


def formula(preset: str, path: str) -> dict[str, Any]:
    """Without an integration, through the public interface; and what each stage took."""
    problem, kind, laps, done = _opened(preset)
    import jax
    import jax.numpy as jnp

    import spectral_ode as so

    @jax.jit
    def losses(times: Any) -> Any:
        system = kind.from_problem(problem)
        state = system.project(so.draw(problem))
        learned = (lambda t: system.closed_form(t, state)) if hasattr(state, "s") else lambda t: system.closed_form(t, state.v) ** 3
        return jax.vmap(lambda t: system.data.loss(jnp.diag(learned(t))))(times)

    loss = losses(problem.times).tolist()
    done()
    draw(problem.times, loss, path)
    done()
    return {"loss": loss, "stages": _stages(("imports", "closed form", "picture"), laps)}


def _stages(names: tuple[str, ...], laps: list[float]) -> dict[str, float]:
    return dict(zip(names, (b - a for a, b in itertools.pairwise(laps)), strict=True))


def ours(preset: str, path: str) -> dict[str, Any]:
    """The same by the reduced ODE."""
    problem, kind, laps, done = _opened(preset)
    import jax

    import spectral_ode as so

    @jax.jit  # one program; operation by operation it would be thirty
    def start() -> Any:
        system = kind.from_problem(problem)
        return system, system.project(so.draw(problem))

    system, state = start()
    done()
    theory = so.solve_problem(system, problem, state, phases=False)
    done()
    draw(theory.time, theory["loss"], path)
    done()
    stages = _stages(("imports", "start", "solve", "picture"), laps)
    data = {name: getattr(system.data, name).tolist() for name in ("g", "lam", "C", "power")}
    numbers = {"state": [leaf.ravel().tolist() for leaf in jax.tree.leaves(state)], "times": problem.times.tolist(), **data}
    return {"loss": theory["loss"].tolist(), "stages": stages, "numbers": numbers}


def scipy(numbers: str, path: str) -> dict[str, Any]:
    """As a scipy user writes it."""
    import numpy as np
    from scipy.integrate import solve_ivp

    told = {name: value if name == "state" else np.asarray(value) for name, value in json.loads(Path(numbers).read_text()).items()}
    g, lam, C, times, start = (told[name] for name in ("g", "lam", "C", "times", "state"))
    if len(start) == 2:  # merged: s and a, A = s a

        def field(t: float, y: np.ndarray) -> np.ndarray:
            pull = g - lam * C * y[0] * y[1:]
            return np.concatenate([[y[1:] @ pull], y[0] * pull])
    else:  # separate: v, A = v^3

        def field(t: float, y: np.ndarray) -> np.ndarray:
            return g * y**2 - lam * C * y**5

    begin = np.concatenate(start)
    y = solve_ivp(field, (0.0, times[-1]), begin, method="LSODA", t_eval=times, rtol=1e-10, atol=1e-10 * begin.min()).y
    A = y[0] * y[1:] if len(start) == 2 else y**3
    loss = told["power"] - 2 * g @ A + (C * lam) @ A**2
    draw(times, loss, path)
    return {"loss": loss.tolist()}


def draw(times: Any, loss: Any, path: str) -> None:
    """The same picture for both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="tight")
    axes = figure.subplots()
    axes.plot(times, loss)
    axes.set(xlabel="time", ylabel="loss")
    figure.savefig(path)


def process(folder: Path, side: str, argument: str, cache: str) -> dict[str, Any]:
    """What a fresh process says, and its seconds; programs are kept in a folder of their own."""
    from benchmarks.measure import clock
    from benchmarks.processes import begin

    path = folder / f"{side}.png"
    path.unlink(missing_ok=True)
    took, (process, line) = clock(lambda: begin("picture", side, argument, str(path), XDG_CACHE_HOME=str(folder / cache)))
    assert path.stat().st_size > 5000
    process.communicate()  # its end is not waited for by the clock
    return json.loads(line) | {"seconds": took}


def lap(folder: Path, preset: str, number: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Both roads, each cold and warm, and scipy, one after the other."""
    found = {}
    for road in ROADS:
        cache = f"{preset} {road} {number}"
        found |= {(road, state): process(folder, road, preset, cache) for state in ("cold", "warm")}
    (folder / "numbers.json").write_text(json.dumps(found["ours", "warm"]["numbers"]), encoding="utf-8")
    return found | {("scipy", ""): process(folder, "scipy", str(folder / "numbers.json"), "none")}


def run(options: Any) -> Iterator[Any]:
    import numpy as np

    from benchmarks.measure import Row

    with tempfile.TemporaryDirectory() as name:
        process(Path(name), "ours", "one-drop", "before")  # files come into memory, and matplotlib lists its fonts
        for preset, goals in list(GOALS.items())[: 1 if options.small else None]:
            laps = [lap(Path(name), preset, number) for number in range(min(options.rounds, 3))]
            took = {side: [lap[side]["seconds"] for lap in laps] for side in laps[0]}
            gap = max(float(np.max(np.abs(np.subtract(laps[0][road, "warm"]["loss"], laps[0]["scipy", ""]["loss"])))) for road in ROADS)
            assert gap < 1e-5, f"two answers to one problem differ by {gap:.1e}"
            for road, (state, goal) in itertools.product(ROADS, zip(("cold", "warm"), goals, strict=True)):
                mine = [lap[road, state]["stages"] for lap in laps]
                parts = ", ".join(f"{stage} {np.median([stages[stage] for stages in mine]):.2f}" for stage in mine[0])
                print(f"    {preset}, {ROADS[road]}, {state}: {parts} s", flush=True)
                what = f"first picture of {preset}, {ROADS[road]}, {state}"
                yield Row(what, took[road, state], "scipy script", took["scipy", ""], at_most=goal)


if __name__ == "__main__":
    print(json.dumps({"formula": formula, "ours": ours, "scipy": scipy}[sys.argv[1]](*sys.argv[2:])), flush=True)
