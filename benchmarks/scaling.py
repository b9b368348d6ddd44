"""How costs grow: seconds of a step, and the compiler's own count of operations and memory, each with a fitted power.

Linear flow: the field of all weights (H = 4 or D = 16), in a loop of 100 evaluations. Training: the gradient of one step, from the
sizes of a preset: `three-phases` with 200 contexts (tasks share d = 30), `zhang2025-fig3` with 500 sequences, `head-sweep`. Sizes take
turns. Powers come from a straight line through the logarithms; small sizes bend it down where a fixed cost shows. To call a program takes
about a tenth of a millisecond: steps by moments, and by Gram matrices of few sequences, take less, and the power of their time says
nothing; that of their operations does. A memory of zero has no power. Devices are virtual ones that share the cores there are: seconds of a
step of `simulate.train` with 1,600 contexts, in processes of their own.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.measure import Growth, Options, clock, in_turns
from benchmarks.processes import fresh


class Program(NamedTuple):
    """Something to time, with the compiler's count for one of `calls` in it."""

    call: Callable[[], Any]
    operations: float
    memory: float
    calls: int = 1


def flow(D: int = 16, H: int = 4) -> Program:
    """The field of all weights of linear attention."""
    import jax

    import spectral_ode as so

    base = so.Problem()
    spectrum = tuple(1 / (1 + d) for d in range(D))
    problem = replace(base, task=replace(base.regression, spectrum=spectrum), attention=replace(base.attention, heads=H))
    system, start = so.systems.load(problem.system).from_problem(problem).population(), so.draw(problem)
    field = lambda y: system.vector_field(jax.numpy.zeros(()), y)
    euler = lambda _, y: jax.tree.map(lambda part, slope: part + 1e-6 * slope, y, field(y))
    counted, many = jax.jit(field).lower(start).compile(), jax.jit(lambda y: jax.lax.fori_loop(0, 100, euler, y)).lower(start).compile()
    return _program(lambda: many(start), counted, calls=100)


def step(preset: str, *, task: dict | None = None, attention: dict | None = None, **training: Any) -> Program:
    """The gradient of a training step of a preset with other sizes."""
    import spectral_ode as so
    from simulate.cost import gradient, pieces
    from simulate.mesh import Deal

    base = replace(so.load(preset), runs=1)
    sections = {"task": task or {}, "attention": attention or {}, "training": training}
    problem = replace(base, **{name: replace(getattr(base, name), **changes) for name, changes in sections.items()})
    program, arguments = gradient(problem, Deal())
    batch, piece = pieces(problem, Deal())
    return _program(lambda: program(*arguments), program.compiled, times=batch / piece)  # a loop over pieces is counted once


def _program(call: Callable[[], Any], counted: Any, times: float = 1.0, calls: int = 1) -> Program:
    return Program(call, counted.cost_analysis()["flops"] * times, float(counted.memory_analysis().temp_size_in_bytes), calls)


def softmax(**sizes: Any) -> Program:
    """Of softmax attention on fresh contexts."""
    task = {name: sizes.pop(name) for name in ("dimensions", "context") if name in sizes}
    heads = {"heads": sizes.pop("heads")} if "heads" in sizes else {}
    return step("three-phases", task=task, attention=heads, **({"contexts": 200} | sizes))


def linear(method: str, **sizes: Any) -> Program:
    """Of linear attention on a fixed set, by one of three roads."""
    task = {"context": sizes.get("N", 31), "spectrum": tuple(1 / (2 + d) for d in range(sizes.get("D", 4)))}
    return step("zhang2025-fig3", task=task, method=method, sequences=sizes.get("sequences", 500), sampling="iid", dtype="float64")


ROADS = {"sequences": (250, 1000, 4000), "N": (16, 64, 256), "D": (4, 6, 10)}
MANY = {"sequences": (4000, 16_000, 64_000)}  # a Gram matrix is quick
CURVES: list[tuple[str, str, tuple[int, ...], Callable[[int], Program]]] = [
    ("field of the linear flow", "D", (8, 24, 72), lambda size: flow(D=size)),
    ("field of the linear flow", "H", (4, 16, 64), lambda size: flow(H=size)),
    ("softmax training step", "I", (1, 3, 10), lambda size: softmax(dimensions=(30 // size,) * size)),
    ("softmax training step", "L", (50, 150, 450), lambda size: softmax(context=size)),
    ("softmax training step", "H", (2, 6, 18), lambda size: softmax(heads=size)),
    ("softmax training step", "batch", (200, 600, 1800), lambda size: softmax(contexts=size)),
    *(
        (f"linear training step by {method}", along, sizes, lambda size, method=method, along=along: linear(method, **{along: size}))
        for method in ("attention", "gram", "moments")
        for along, sizes in (ROADS | (MANY if method == "gram" else {})).items()
    ),
    ("transformer step, sparse", "N", (10, 30, 90), lambda size: step("head-sweep", task={"context": size})),
    ("transformer step, sparse", "batch", (64, 192, 512), lambda size: step("head-sweep", tasks=size)),
]


def run(options: Options) -> Iterator[Growth]:
    import jax

    for what, along, sizes, make in CURVES[:: 4 if options.small else 1]:
        sizes = sizes[:2] if options.small else sizes
        programs = [make(size) for size in sizes]
        timers = {str(size): lambda program=program: _seconds(program) for size, program in zip(sizes, programs, strict=True)}
        in_turns(1, **timers)
        laps = in_turns(options.rounds, **timers)
        seconds = [list(lap) for lap in zip(*laps.values(), strict=True)]
        yield Growth(what, along, list(sizes), seconds, [p.operations for p in programs], [p.memory for p in programs])
        jax.clear_caches()
    counts = (1,) if options.small else (1, 2)
    environment = lambda count: {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    devices = {str(count): lambda count=count: fresh("scaling", "2" if options.small else "15", **environment(count)) for count in counts}
    laps = in_turns(min(options.rounds, 2), **devices)
    yield Growth("softmax training, 1,600 contexts", "devices", list(counts), [list(lap) for lap in zip(*laps.values(), strict=True)])


def _seconds(program: Program) -> float:
    """Of one call, from as many as fill a few milliseconds."""
    import jax

    again = lambda count: clock(lambda: jax.block_until_ready([program.call() for _ in range(count)]))[0] / count
    return again(max(2, min(200, int(0.02 / again(2))))) / program.calls


def trained(steps: int) -> float:
    """In a fresh process with some devices: seconds of a training step."""
    import simulate
    import spectral_ode as so

    so.configure(cache=False)
    base = so.load("three-phases")
    training = replace(base.training, contexts=1600, test_contexts=200, changes=(), rates=())
    problem = lambda count: replace(base, points=2, horizon=count * training.learning_rate, training=training)
    train = lambda count: clock(lambda: simulate.train(problem(count))["loss"].block_until_ready())[0]
    train(1)
    train(1 + steps)
    return (train(1 + steps) - train(1)) / steps


if __name__ == "__main__":
    print(json.dumps(trained(int(sys.argv[1]))))
