"""A recorded training run of the authors' scripts: data, start and loss curve, read from an npz and checked array by array.

Linear attention (the conventions of yedizhang/linattn-icl, PyTorch), `model` attnM or attnS: scalars `lr`, `epochs`, `heads`, `rank`,
`in_dim`, `seq_len`, `softmax`, `vary_len`; `loss` (epochs), and `loss_in_weight_test`, `loss_in_context_test` where there were tests;
`data_x`, `data_y` (sequences, seq_len, in_dim + 1), the last token being the query with label 0 in `data_x`, and the tests'
`data_x_iwl`, ...; start weights `init_value` and `init_kq`, or `init_key` and `init_query`, heads stacked along the rows, a row acting
as `token @ row`.

Softmax attention (FFishy-git/MS-Attn-Simulation), `model` attnFull: scalars `lr`, `epochs`, `heads`, `in_dim`, `out_dim`, `context`;
`loss`; `data_context` (contexts, context, e), `data_query` (contexts, e), `data_target` (contexts, out_dim), e = in_dim + out_dim; start
weights `init_query`, `init_key`, `init_value` (heads x e, e) and `init_output` (out_dim, heads x e).
"""

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from spectral_ode import archive
from spectral_ode.problem import BadInput

SCALARS = {
    "lr": float,
    "epochs": int,
    "heads": int,
    "rank": int,
    "in_dim": int,
    "seq_len": int,
    "out_dim": int,
    "context": int,
    "model": str,
    "softmax": bool,
    "vary_len": bool,
}
TESTS = {"in-weight": ("iwl", "loss_in_weight_test"), "in-context": ("icl", "loss_in_context_test")}


@dataclass(frozen=True)
class Recording:
    """One run; `kind` is merged, separate or full, `curves` are the recorded losses by name, `data` are the sets by the same names."""

    name: str
    kind: str
    softmax: bool
    vary_len: bool
    lr: float
    heads: int
    rank: int
    curves: dict[str, np.ndarray]
    data: dict[str, tuple[np.ndarray, ...]]
    start: dict[str, np.ndarray]

    @property
    def epochs(self) -> int:
        """Number of recorded losses."""
        return self.curves["training"].size


class _File:
    """The arrays of one file, each checked when it is asked for."""

    def __init__(self, path: str | os.PathLike) -> None:
        otherwise = f"{path} is not an npz file of plain arrays, or it was cut short; record the run again"
        self.path, self.arrays = path, archive.arrays(path, otherwise)

    def scalar(self, name: str) -> Any:
        """A single value of the type that `SCALARS` says."""
        value, kind = self._entry(name, "a single value"), SCALARS[name]
        if value.shape != () or value.dtype.kind not in {str: "U", bool: "biuf"}.get(kind, "iuf"):
            raise BadInput(f"{self.path}: {name} has shape {value.shape} and type {value.dtype}, but a single {kind.__name__} is expected")
        entry = value.item()
        if kind is bool and entry not in (0, 1):
            raise BadInput(f"{self.path}: {name} is {entry}, but true or false is expected")
        if kind in (int, float) and not (math.isfinite(entry) and entry > 0 and entry == kind(entry)):
            raise BadInput(f"{self.path}: {name} is {entry}, but a positive {kind.__name__} is expected")
        return kind(entry)

    def array(self, name: str, *shape: int | str) -> np.ndarray:
        """Numbers of a shape; an entry in words fits any length."""
        value = self._entry(name, f"an array of shape {_shown(shape)}")
        fits = value.ndim == len(shape) and all(
            isinstance(want, str) or want == have for want, have in zip(shape, value.shape, strict=True)
        )
        if not fits or value.size == 0 or value.dtype.kind not in "fiu":
            found = f"{name} has shape {value.shape}, type {value.dtype}"
            raise BadInput(f"{self.path}: {found}, but numbers of shape {_shown(shape)} are expected")
        return value.astype(np.float64)

    def finite(self, name: str, *shape: int | str) -> np.ndarray:
        """The same, every entry a number."""
        value = self.array(name, *shape)
        if not np.isfinite(value).all():
            raise BadInput(f"{self.path}: {name} holds an entry that is not a number; a replay needs finite data and weights")
        return value

    def _entry(self, name: str, wanted: str) -> np.ndarray:
        if name not in self.arrays:
            raise BadInput(f"{self.path} has no array {name}; {wanted} is expected")
        return self.arrays[name]


def load(path: str | os.PathLike) -> Recording:
    """Read and check a recording; what is wrong is a `BadInput` that names the array and the shape expected."""
    file = _File(path)
    kinds = {"attnM": "merged", "attnS": "separate", "attnFull": "full"}
    if (model := file.scalar("model")) not in kinds:
        raise BadInput(f"{path}: model is {model!r}, but it must be one of {', '.join(kinds)}")
    name = os.path.splitext(os.path.basename(path))[0]
    return _full(file, name) if kinds[model] == "full" else _linear(file, name, kinds[model])


def _linear(file: _File, name: str, kind: str) -> Recording:
    lr, epochs, heads, rank, d, tokens = (file.scalar(key) for key in ("lr", "epochs", "heads", "rank", "in_dim", "seq_len"))
    softmax, vary_len, e = file.scalar("softmax"), file.scalar("vary_len"), d + 1
    if tokens < 2:
        raise BadInput(f"{file.path}: seq_len is {tokens}, but at least one context token and the query are needed: 2")
    curves, data = {"training": file.array("loss", epochs)}, {}
    sets = {"training": ("data_x", "data_y")}
    for test, (short, curve) in TESTS.items():
        if curve in file.arrays:
            curves[test] = file.array(curve, epochs)
            sets[test] = (f"data_x_{short}", f"data_y_{short}")
    for key, (x, y) in sets.items():
        inputs = file.finite(x, "sequences", tokens, e)
        data[key] = inputs, file.finite(y, inputs.shape[0], tokens, e)
        if np.any(inputs[:, -1, -1] != 0):
            raise BadInput(f"{file.path}: {x} has a label in its last token, but the query's label entry {x}[:, -1, -1] must be 0")
    shapes = {"value": (heads * e, e), "kq": (heads * e, e)}
    if kind == "separate":
        shapes = {"value": (heads * e, e)} | dict.fromkeys(("key", "query"), (heads * rank, e))
    start = {part: file.finite(f"init_{part}", *shape) for part, shape in shapes.items()}
    return Recording(name, kind, softmax, vary_len, lr, heads, rank, curves, data, start)


def _full(file: _File, name: str) -> Recording:
    lr, epochs, heads, d, y, context = (file.scalar(key) for key in ("lr", "epochs", "heads", "in_dim", "out_dim", "context"))
    e = d + y
    episodes = file.finite("data_context", "contexts", context, e)
    data = {"training": (episodes, file.finite("data_query", len(episodes), e), file.finite("data_target", len(episodes), y))}
    start = {part: file.finite(f"init_{part}", heads * e, e) for part in ("query", "key", "value")}
    start["output"] = file.finite("init_output", y, heads * e)
    return Recording(name, "full", True, False, lr, heads, e, {"training": file.array("loss", epochs)}, data, start)


def _shown(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
