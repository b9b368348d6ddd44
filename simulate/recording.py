"""A recorded training run of the authors' script: data, start and loss curve, read from an npz and checked array by array.

Layout (the conventions of yedizhang/linattn-icl, PyTorch): scalars `lr`, `epochs`, `heads`, `rank`, `in_dim`, `seq_len`, `model` (attnM or
attnS), `softmax`, `vary_len`; `loss` (epochs), and `loss_in_weight_test`, `loss_in_context_test` where there were tests; `data_x`, `data_y`
(sequences, seq_len, in_dim + 1), the last token being the query with label 0 in `data_x`, and the tests' `data_x_iwl`, ...; start weights
`init_value` and `init_kq`, or `init_key` and `init_query`, heads stacked along the rows, a row acting as `token @ row`.
"""

import math
import os
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectral_ode.problem import BadInput

SCALARS = {
    "lr": float,
    "epochs": int,
    "heads": int,
    "rank": int,
    "in_dim": int,
    "seq_len": int,
    "model": str,
    "softmax": bool,
    "vary_len": bool,
}
TESTS = {"in-weight": ("iwl", "loss_in_weight_test"), "in-context": ("icl", "loss_in_context_test")}


@dataclass(frozen=True)
class Recording:
    """One run; `kind` is merged or separate, `curves` are the recorded losses by name, `data` are the sets by the same names."""

    name: str
    kind: str
    softmax: bool
    vary_len: bool
    lr: float
    heads: int
    rank: int
    curves: dict[str, np.ndarray]
    data: dict[str, tuple[np.ndarray, np.ndarray]]
    start: dict[str, np.ndarray]

    @property
    def epochs(self) -> int:
        """Number of recorded losses."""
        return self.curves["training"].size


def load(path: str | os.PathLike) -> Recording:
    """Read and check a recording; what is wrong is a `BadInput` that names the array and the shape expected."""
    arrays = _arrays(path)

    def scalar(name: str) -> Any:
        value, kind = _entry(path, arrays, name, "a single value"), SCALARS[name]
        if value.shape != () or (kind is str) != (value.dtype.kind == "U"):
            raise BadInput(f"{path}: {name} has shape {value.shape} and type {value.dtype}, but a single {kind.__name__} is expected")
        number = value.item()
        if kind in (int, float) and not (math.isfinite(number) and number > 0 and number == kind(number)):
            raise BadInput(f"{path}: {name} is {number}, but a positive {kind.__name__} is expected")
        return kind(number)

    def array(name: str, *shape: int | str) -> np.ndarray:
        value = _entry(path, arrays, name, f"an array of shape {_shown(shape)}")
        fits = value.ndim == len(shape) and all(
            isinstance(want, str) or want == have for want, have in zip(shape, value.shape, strict=True)
        )
        if not fits or value.size == 0 or value.dtype.kind not in "fiu":
            raise BadInput(f"{path}: {name} has shape {value.shape}, type {value.dtype}, but numbers of shape {_shown(shape)} are expected")
        return value.astype(np.float64)

    def finite(name: str, *shape: int | str) -> np.ndarray:
        value = array(name, *shape)
        if not np.isfinite(value).all():
            raise BadInput(f"{path}: {name} holds an entry that is not a number; a replay needs finite data and weights")
        return value

    kinds = {"attnM": "merged", "attnS": "separate"}
    if (model := scalar("model")) not in kinds:
        raise BadInput(f"{path}: model is {model!r}, but it must be one of {', '.join(kinds)}")
    scalars = {name: scalar(name) for name in SCALARS}
    kind, heads, rank = kinds[model], scalars["heads"], scalars["rank"]
    tokens, e = scalars["seq_len"], scalars["in_dim"] + 1
    if tokens < 2:
        raise BadInput(f"{path}: seq_len is {tokens}, but at least one context token and the query are needed: 2")
    curves, data = {"training": array("loss", scalars["epochs"])}, {}
    sets = {"training": ("data_x", "data_y")}
    for name, (short, curve) in TESTS.items():
        if curve in arrays:
            curves[name] = array(curve, scalars["epochs"])
            sets[name] = (f"data_x_{short}", f"data_y_{short}")
    for name, (x, y) in sets.items():
        inputs = finite(x, "sequences", tokens, e)
        data[name] = inputs, finite(y, inputs.shape[0], tokens, e)
        if np.any(inputs[:, -1, -1] != 0):
            raise BadInput(f"{path}: {x} has a label in its last token, but the query's label entry {x}[:, -1, -1] must be 0")
    shapes = {"value": (heads * e, e), "kq": (heads * e, e)} if kind == "merged" else {"value": (heads * e, e)}
    shapes |= {} if kind == "merged" else dict.fromkeys(("key", "query"), (heads * rank, e))
    start = {name: finite(f"init_{name}", *shape) for name, shape in shapes.items()}
    name = os.path.splitext(os.path.basename(path))[0]
    return Recording(name, kind, scalars["softmax"], scalars["vary_len"], scalars["lr"], heads, rank, curves, data, start)


def _arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, RuntimeError, zlib.error, zipfile.BadZipFile):
        raise BadInput(f"{path} is not an npz file of plain arrays, or it was cut short; record the run again") from None


def _entry(path: str | os.PathLike, arrays: dict[str, np.ndarray], name: str, wanted: str) -> np.ndarray:
    if name not in arrays:
        raise BadInput(f"{path} has no array {name}; {wanted} is expected")
    return arrays[name]


def _shown(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
