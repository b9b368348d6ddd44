"""The page of all benchmarks: docs/benchmarks.md, made from what was measured."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Found, Growth, Row, fitted, seconds, several

HEAD = """# Benchmarks

This page is written by

```
make benchmarks
python -m benchmarks --script-linear FOLDER --script-softmax FOLDER --python PYTHON_WITH_TORCH
```

The two folders are copies of the authors' codes, which are not part of this project; without them those two tables are left out. Names of
benchmarks choose some (`python -m benchmarks flows saddles --out page.md`). All sides of a comparison take turns in one run; told is the
median over rounds with its range. A goal holds for the median. "Times as fast" below one: the other side wins.
"""

WENT = Path(__file__).with_name("profile.md")  # written by hand: profiles before and after

COLUMNS = "| | ours | other | times as fast | error: ours, other | goal | met |\n|---|---|---|---|---|---|---|\n"
GROWTH = "| | with | seconds | power of the time | of operations | of memory |\n|---|---|---|---|---|---|\n"


def write(path: Path, text: str) -> None:
    """All of it or nothing: written aside, then renamed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def machine(before: float, after: float, small: bool) -> dict[str, Any]:
    """What the numbers were measured on; no names."""
    version = importlib.metadata.version
    versions = {name: version(name) for name in ("jax", "diffrax", "scipy", "numpy")} | {"python": platform.python_version()}
    return {"cores": os.cpu_count(), "load before": before, "load after": after, "versions": versions, "small": small}


def text(found: Mapping[str, list[Found]], titles: Mapping[str, str], troubles: Mapping[str, str], where: dict[str, Any]) -> str:
    """The whole page."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    cores = f"{where['cores']} cores, load {where['load before']:.1f} before and {where['load after']:.1f} after"
    small = "\n**Tiny sizes: these numbers only show that everything runs.**\n" if where["small"] else ""
    parts = [HEAD, f"Measured on {cores}; {versions}.\n{small}"]
    for name, title in titles.items():
        heading, _, rest = title.partition("\n")
        parts.append(f"## {heading.rstrip('.')}\n\n{rest.strip()}\n")
        rows = [one for one in found.get(name, []) if isinstance(one, Row)]
        curves = [one for one in found.get(name, []) if isinstance(one, Growth)]
        if rows:
            parts.append(COLUMNS + "\n".join(map(_row, rows)) + "\n")
        if curves:
            parts.append(GROWTH + "\n".join(map(_growth, curves)) + "\n")
        if name in troubles:
            parts.append(f"{troubles[name]}\n")
    return "\n".join([*parts, WENT.read_text(encoding="utf-8")])


def _row(row: Row) -> str:
    errors = ", ".join("" if error is None else f"{error:.1e}" for error in row.errors).removesuffix(", ")
    ratio = several(row.speedups) if row.against else ""
    other = f"{row.against}: {seconds(row.other)}" if row.against else ""
    met = {True: "met", False: "**not met**", None: ""}[row.met]
    return f"| {row.what} | {seconds(row.ours)} | {other} | {ratio} | {errors} | {_goal(row)} | {met} |"


def _goal(row: Row) -> str:
    goals = [] if row.at_least is None else [f"{row.at_least:g} times"]
    goals += [] if row.at_most is None else [f"at most {row.at_most:g} s"]
    goals += [] if row.error_below is None else [f"error below {row.error_below:.0e}"]
    return ", ".join(goals + (["error no worse"] if row.no_worse else []))


def _growth(curve: Growth) -> str:
    middle = np.median(curve.seconds, axis=0)
    listed = ", ".join(f"{size}: {seconds([lap])}" for size, lap in zip(curve.sizes, middle, strict=True))
    power = lambda values: "{:.2f} ± {:.2f}".format(*fitted(curve.sizes, values)) if len(values) and np.all(np.asarray(values) > 0) else ""
    return f"| {curve.what} | {curve.along} | {listed} | {power(curve.seconds)} | {power(curve.operations)} | {power(curve.memory)} |"


def numbers(found: Mapping[str, list[Found]], troubles: Mapping[str, str], where: dict[str, Any]) -> str:
    """The same as JSON."""
    results = {name: [asdict(one) | ({"met": one.met} if isinstance(one, Row) else {}) for one in rows] for name, rows in found.items()}
    return json.dumps({"machine": where, "results": results, "troubles": dict(troubles)}, indent=1) + "\n"
