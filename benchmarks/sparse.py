"""Sparse regression: seconds of a training step of the transformers, and descent on preprocessed features against a Lasso path.

A step is the gradient of one batch of tasks, by the program that `simulate.cost` counts. Descent with its referees, and the path of
scikit-learn (the extra `lasso`), answer the same tasks (d = 64, s = 4, n = 256). The GPU preset is not run: its operations
are counted and divided by an assumed rate.
"""

from collections.abc import Iterator

from benchmarks.measure import Options, Row, Skipped, clock, in_turns

PRESETS = ("head-sweep", "head-importance")
LARGE = "head-importance-gpu"
SUSTAINED = 5e12  # float32 operations per second that such small matrices may reach on one modern GPU: an assumption, not a measurement


def run(options: Options) -> Iterator[Row]:
    import jax

    import simulate
    import spectral_ode as so
    from figures import lasso
    from simulate.cost import gradient
    from simulate.mesh import Deal
    from simulate.referees import study
    from spectral_ode.systems.sparse.data import Law

    for name in PRESETS[: 1 if options.small else None]:
        program, arguments = gradient(so.load(name), Deal())
        step = lambda program=program, arguments=arguments: clock(lambda: jax.block_until_ready(program(*arguments)))[0]
        step()
        yield Row(f"training step of {name}", in_turns(options.rounds, ours=step)["ours"])
    if not options.small:
        problem = so.load(LARGE)
        steps, work = int(problem.steps[-1]) * problem.runs, simulate.cost(problem).operations
        hours = steps * work / SUSTAINED / 3600
        print(f"    {LARGE}: {work:.2g} operations a step, {steps} steps; {hours:.2g} h at {SUSTAINED:.0e} a second (extrapolated)")
    if not lasso.present():
        raise Skipped(lasso.ABSENT)
    tasks = 2 if options.small else 20
    law, key = Law(64, 4, 256, 0.5), jax.random.key(0)
    timers = {
        "ours": lambda: clock(lambda: jax.block_until_ready(study(law, key, tasks=tasks, steps=100)))[0] / tasks,
        "path": lambda: clock(lambda: lasso.risk(law, key, tasks=tasks))[0] / tasks,
    }
    in_turns(1, **timers)
    took = in_turns(min(options.rounds, 3), **timers)
    yield Row("100 steps of descent and its referees, a task", took["ours"], "Lasso path", took["path"])
