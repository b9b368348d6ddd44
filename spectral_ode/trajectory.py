"""The only result type, of theory and training alike: a clock, named observables over it, and where they come from."""

import json
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from spectral_ode import archive
from spectral_ode.problem import BadInput

FORMAT = 1  # version of the file layout


class Trajectory(eqx.Module):
    """Observables over a clock, for one run or (after `stack`, or under `vmap`) for several, along a leading axis.

    `phases` holds the exact times of named landmarks (nan: not reached). `origin` is JSON text: problem, versions, solver
    statistics, why the trajectory ended. A trajectory is a pytree: `vmap`, `grad` and `jit` go through it.
    """

    time: Float[Array, "*runs time"]
    observables: dict[str, Array]
    phases: dict[str, Float[Array, "*runs"]]
    clock: str = eqx.field(static=True, default="flow time")
    origin: str = eqx.field(static=True, default="{}")

    def __getitem__(self, name: str) -> Array:
        """An observable by name."""
        try:
            return self.observables[name]
        except KeyError:
            raise KeyError(f"no observable {name!r}; there are {', '.join(self.observables)}") from None

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from."""
        return json.loads(self.origin)

    @property
    def stopped(self) -> str:
        """Why the trajectory ended, in a sentence (empty under tracing, where nobody knows yet)."""
        return self.provenance.get("stopped", "")

    @property
    def ok(self) -> bool:
        """Whether it ended where it should."""
        return self.provenance.get("ok", True)

    @property
    def runs(self) -> int:
        """Number of stacked runs; 0 for a single one."""
        return self.time.shape[0] if self.time.ndim > 1 else 0

    def run(self, index: int) -> "Trajectory":
        """One run of a stack."""
        if not 0 <= index < self.runs:
            raise IndexError(f"run {index} is not one of the {self.runs} runs of this trajectory")
        provenance = self.provenance["runs"][index] if "runs" in self.provenance else self.provenance
        time, observables, phases = jax.tree.map(lambda leaf: leaf[index], (self.time, self.observables, self.phases))
        return Trajectory(time, observables, phases, self.clock, json.dumps(provenance))

    def with_provenance(self, **entries: Any) -> "Trajectory":
        """The same trajectory, with entries added to its provenance."""
        return Trajectory(self.time, self.observables, self.phases, self.clock, json.dumps({**self.provenance, **entries}))

    @classmethod
    def stack(cls, members: list["Trajectory"]) -> "Trajectory":
        """Several runs on one clock. A run that ended earlier than the longest holds its last value from there on."""
        longest = max(members, key=lambda member: member.time.shape[0])
        length = longest.time.shape[0]
        if any(not np.array_equal(member.time, longest.time[: member.time.shape[0]]) for member in members):
            raise ValueError("only runs on the same clock can be stacked")

        def hold(leaf):
            return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], length - leaf.shape[0], axis=0)])

        observables = {name: jnp.stack([hold(member[name]) for member in members]) for name in longest.observables}
        phases = {name: jnp.stack([jnp.asarray(member.phases[name]) for member in members]) for name in longest.phases}
        origins = [member.provenance for member in members]
        common = {key: value for key, value in origins[0].items() if all(origin.get(key) == value for origin in origins)}
        common |= {"ok": all(member.ok for member in members), "runs": origins}
        common["stopped"] = "; ".join(dict.fromkeys(member.stopped for member in members))
        return cls(jnp.stack([longest.time] * len(members)), observables, phases, longest.clock, json.dumps(common))

    def __repr__(self) -> str:
        """A few readable lines: what, over which time, which observables, which landmarks, why it ended."""
        if any(isinstance(leaf, Tracer) or not hasattr(leaf, "__array__") for leaf in jax.tree.leaves(self)):
            return f"Trajectory(traced, {', '.join(self.observables)})"
        time = np.asarray(self.time)
        source = self.provenance.get("source", "trajectory")
        many = f", {self.runs} runs" if self.runs else ""
        lines = [f"Trajectory of {source}{many}: {time.shape[-1]} points, {self.clock} {time.min():g} to {time.max():g}"]
        for name, array in self.observables.items():
            values = np.asarray(array)
            shape = "x".join(map(str, values.shape[time.ndim :])) or "scalar"
            span = f", {np.mean(values[..., 0]):.6g} -> {np.mean(values[..., -1]):.6g}" if shape == "scalar" else ""
            lines.append(f"  {name}: {shape}{span}")
        if self.phases and not self.runs:
            reached = {name: float(t) for name, t in self.phases.items() if np.isfinite(t)}
            lines.append("  phases: " + (", ".join(f"{name} at {t:.6g}" for name, t in reached.items()) or "none reached"))
        return "\n".join([*lines, f"  {self.stopped}"] if self.stopped else lines)

    def save(self, path: str | os.PathLike) -> None:
        """Write an npz without pickle that numpy alone can read; aside first, then renamed, so that no half file is left."""
        arrays = {"time": self.time, **{f"observable/{k}": v for k, v in self.observables.items()}}
        arrays |= {f"phase/{k}": v for k, v in self.phases.items()}
        for name in arrays:
            archive.acceptable(name)
        header = {"format": FORMAT, "clock": self.clock, "provenance": self.provenance}
        path = Path(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}.npz")
        try:
            np.savez(aside, allow_pickle=False, header=np.array(json.dumps(header)), **{k: np.asarray(v) for k, v in arrays.items()})
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Trajectory":
        """Read what `save` wrote; a truncated or foreign file raises `BadInput`."""
        otherwise = f"{path} is not a trajectory file, or it was cut short; save it again with Trajectory.save"
        arrays = archive.arrays(path, otherwise)
        try:
            header = json.loads(arrays.pop("header").item())
            time = arrays.pop("time")
            clock, provenance, version = header["clock"], header["provenance"], header["format"]
        except (KeyError, ValueError, TypeError, RecursionError):
            raise BadInput(otherwise) from None
        if not (isinstance(clock, str) and isinstance(provenance, dict)):
            raise BadInput(otherwise)
        if version != FORMAT:
            raise BadInput(f"{path} has file format {version!r:.40}, but this version reads format {FORMAT}")
        if time.ndim not in (1, 2) or time.size == 0 or time.dtype.kind != "f" or time.itemsize > 8:
            raise BadInput(f"{path} has a time of shape {time.shape} and type {time.dtype}, which is not a clock")
        named = {kind: {} for kind in ("observable", "phase")}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            shape = time.shape if kind == "observable" else time.shape[:-1]
            fits = array.shape[: time.ndim] == shape if kind == "observable" else array.shape == shape
            if kind not in named or not fits or array.dtype.kind not in "fiub" or array.itemsize > 8:
                raise BadInput(
                    f"{path} holds an array {name!r:.80} of shape {array.shape}, type {array.dtype}, that does not belong to a trajectory"
                )
            named[kind][rest] = jnp.asarray(array.astype(array.dtype.newbyteorder("=")))
        if not _described(provenance, time.shape[:-1]):
            raise BadInput(f"{path} does not say in words why it ended, or not of each of its runs; save it again with Trajectory.save")
        return cls(
            jnp.asarray(time.astype(time.dtype.newbyteorder("="))), named["observable"], named["phase"], clock, json.dumps(provenance)
        )


def _described(provenance: dict[str, Any], runs: tuple[int, ...]) -> bool:
    """Whether the entries that this class reads are what it takes them for, also in each of the runs."""
    members = provenance.get("runs", [{}] * (*runs, 0)[0])
    return (
        isinstance(provenance.get("ok", True), bool)
        and isinstance(provenance.get("stopped", ""), str)
        and isinstance(members, list)
        and len(members) == (*runs, 0)[0]
        and all(isinstance(member, dict) and _described(member, ()) for member in members)
    )
