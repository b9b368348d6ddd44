"""sweep.toml, the description of a sweep in its folder: whether what lies there belongs to this sweep, and how it was laid out.

Chunks of one sweep must be made by one program: numbers of another version or platform may differ in their last digits. So a sweep is
gone on with only by the versions, the commit and the platform that began it; one that is whole can always be read.
"""

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from spectral_ode import document, runtime
from spectral_ode.problem import BadInput
from spectral_ode.sweeps import layout, store
from spectral_ode.sweeps.axes import Plan
from spectral_ode.sweeps.layout import Layout, Names
from spectral_ode.sweeps.members import Bucket

ANEW = "move it away, or begin anew with --fresh"


def lay_out(folder: Path, plan: Plan, rung: str, buckets: list[Bucket], keep: list[Names], memory: int, *, zarr: bool) -> Layout:
    """The layout of the process that began this sweep, or a new one, written down; raises `BadInput`."""
    path = folder / "sweep.toml"
    described = _plain(_describe(plan, rung, keep, zarr=zarr))
    maker = _plain({name: value for name, value in runtime.provenance(plan.problem).items() if name not in ("problem", "hash")})
    earlier = _read(path)
    if earlier is None:
        found = layout.fit(buckets, memory, keep, plan.size)
        _write(path, described, maker, found)
        return found
    if earlier["sweep"] != described:
        raise BadInput(f"{path} describes another sweep; {ANEW}")
    try:
        found = Layout(**earlier["layout"] | {"groups": tuple(earlier["layout"]["groups"])})
        chunks = found.chunks(buckets)
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{path} is damaged; {ANEW}") from None
    if earlier.get("made by") != maker:
        written = [store.Chunks(folder, zarr=zarr).path(chunk.number).exists() for chunk in chunks]
        if not any(written):
            _write(path, described, maker, found)
        elif not all(written):
            raise BadInput(f"{folder} was begun by another version of the program or on another platform; finish it there, or {ANEW}")
    layout.check(found, buckets, memory, keep, plan.size)
    return found


def read(folder: Path) -> Layout:
    """The layout that the first process has written, for the others."""
    earlier = _read(folder / "sweep.toml")
    if earlier is None:
        raise BadInput(f"{folder} of the first process cannot be seen by all others; give --out a folder that all hosts share")
    return Layout(**earlier["layout"] | {"groups": tuple(earlier["layout"]["groups"])})


def _describe(plan: Plan, rung: str, keep: list[Names], *, zarr: bool) -> dict[str, Any]:
    over = {"over": [axis.text for axis in plan.axes], "samples": plan.samples, "sample_seed": plan.sample_seed, "seeds": plan.seeds}
    kept = [list(names) if names else ["all"] for names in keep]
    return over | {"rung": rung, "keep": kept, "store": "zarr" if zarr else "npz", "problem": document.to_toml(plan.problem)}


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """What becomes of data when it is written and read; the problem as a table."""
    if "problem" in data:
        data = data | {"problem": tomllib.loads(data["problem"])}
    return tomllib.loads(tomli_w.dumps(data))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(found.get(name), dict) for name in ("sweep", "layout")):
            raise ValueError
        return found
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {ANEW}") from None
    except ValueError:
        raise BadInput(f"{path} is not the description of a sweep; {ANEW}") from None


def _write(path: Path, described: dict[str, Any], maker: dict[str, Any], found: Layout) -> None:
    laid_out = found._asdict() | {"groups": list(found.groups)}
    store.write(path, tomli_w.dumps({"sweep": described, "layout": laid_out, "made by": maker}))
