"""Sweeps from Python: the same folder, and the table of all members in memory."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from spectral_ode import cluster, systems
from spectral_ode.document import override
from spectral_ode.problem import BadInput, Problem
from spectral_ode.sweeps import axes, command
from spectral_ode.sweeps.command import Swept


def sweep(
    problem: Problem,
    over: Mapping[str, Any],
    *,
    samples: int = 0,
    sample_seed: int = 0,
    seeds: int = 1,
    rung: str | None = None,
    keep: Sequence[str] | None = None,
    show: str | None = None,
    memory: str = "2GB",
    store: str = "npz",
    out: str | os.PathLike = "runs",
    name: str | None = None,
    fresh: bool = False,
) -> Swept:
    """Solve a problem over grids and samples of its fields and over seeds, in a folder under `out` that can be resumed.

    `over` has the values of each field: a list, or text as the command line takes it, such as "logspace:1e-3,1,20" or (with `samples`)
    "loguniform:1e-3,1". The result has a `summary`, a `table` with a column for every field, phase and final loss, and a `folder`.
    """
    problem = override(problem, {"runs": 1})
    systems.check(problem.system)
    along = tuple(axes.axis(problem, f"{field}={_text(values)}") for field, values in over.items())
    if store not in ("npz", "zarr"):
        raise BadInput(f"store is {store!r}, but it must be one of npz, zarr")
    plan = axes.Plan(problem, along, samples or int(not any(axis.law for axis in along)), sample_seed, seeds)
    bound = cluster.amount("memory", memory)
    assert bound is not None
    request = command.Request(rung, None if keep is None else ",".join(keep), show, bound, store == "zarr", fresh)
    return command.carry_out(name or problem.system, plan, request, os.fspath(out), talk=False)


def _text(values: Any) -> str:
    """Values as the command line takes them."""
    if isinstance(values, str):
        return values
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    lists = [",".join(map(str, value)) for value in plain if isinstance(value, list | tuple)]
    return "/".join(lists) if lists else ",".join(map(str, plain))
