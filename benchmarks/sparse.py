"""What sparse regression costs: `python benchmarks/sparse.py`.

Work of one training step of each transformer preset, by the compiled program's own count; seconds per step of those that run here; and the
GPU preset extrapolated from its work. Then seconds per task of preprocessed descent and of a Lasso path (needs the extra `lasso`).
"""

import sys
import time

import equinox as eqx
import jax

import spectral_ode as so
from figures import lasso
from simulate import adam
from simulate.in_context import Episodes
from simulate.referees import study
from spectral_ode.systems.sparse.data import Law

PRESETS = ("head-sweep", "head-importance", "head-importance-gpu")
SUSTAINED = 5e12  # float32 operations per second that such small matrices may reach on one modern GPU: an assumption, not a measurement


def main() -> int:
    so.configure()
    for name in PRESETS:
        problem = so.load(name)
        model, law = adam.start(problem), Law.from_problem(problem)
        arrays, rest = eqx.partition(model, eqx.is_inexact_array)
        settings = problem.training

        def slope(arrays, key, rest=rest, law=law, settings=settings):
            episodes = Episodes.draw(law, key, tasks=settings.tasks, queries=settings.queries)
            return jax.grad(lambda arrays: episodes.risk(eqx.combine(arrays, rest)))(arrays)

        compiled = jax.jit(slope).lower(arrays, jax.random.key(0)).compile()
        work = compiled.cost_analysis()["flops"]
        steps, size = int(problem.steps[-1]) * problem.runs, sum(leaf.size for leaf in jax.tree.leaves(arrays))
        line = f"{name}: {size} weights, {work / 1e9:.3g} GFlop a step, {steps} steps, {steps * work / 1e15:.3g} PFlop"
        if name.endswith("gpu"):
            print(f"{line}; about {steps * work / SUSTAINED / 3600:.2g} h at {SUSTAINED / 1e12:g} TFlop/s (extrapolated)")
            continue
        jax.block_until_ready(compiled(arrays, jax.random.key(1)))
        begun = time.perf_counter()
        for seed in range(20):
            jax.block_until_ready(compiled(arrays, jax.random.key(seed)))
        print(f"{line}; {(time.perf_counter() - begun) / 20 * 1e3:.3g} ms a step here")
    if not lasso.present():
        print(lasso.ABSENT, file=sys.stderr)
        return 2
    law, tasks = Law(64, 4, 256, 0.5), 20
    for words, call in (("descent and its referees", lambda: study(law, jax.random.key(0), tasks=tasks, steps=100)), ("Lasso path", _path)):
        call()
        begun = time.perf_counter()
        call()
        print(f"{words}: {(time.perf_counter() - begun) / tasks * 1e3:.3g} ms a task at d = {law.d}, n = {law.n}")
    return 0


def _path() -> float:
    return lasso.risk(Law(64, 4, 256, 0.5), jax.random.key(0), tasks=20)


if __name__ == "__main__":
    sys.exit(main())
