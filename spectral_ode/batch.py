r"""Many members of one system at once: a group of them is ONE ordinary differential equation with a shared step.

    Y = (y_1, ..., y_B) on the last axis,     |error| = max_b rms_i( error_ib / (atol_b + rtol_b |y_ib|) )

Every member meets its own tolerance, as alone; the step is that of the most demanding one. On a CPU this beats `vmap`, in which every
member has its own step but all wait for the slowest: no masks, and a vector field that runs along the members (`last_axis`).
The state is one array [unknowns, members]. Phases are located afterwards, member by member, as in `integrate`.

A group always has the same width (the last one is filled up with copies), so the numbers of a member depend on its group alone and not on
how many groups, threads or devices there are. Groups are handed to threads, one or more per device, which call the same program.

Implicit solvers and members on clocks of their own take `vmap` of the single solve instead.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from spectral_ode import integrate, last_axis
from spectral_ode.system import AbstractSystem, State
from spectral_ode.weights import largest

WIDTH = 64  # members of a group: fewer or more are slower on a CPU
EXPLICIT = ("tsit5", "dopri5", "dopri8")
# Long vectors suit loops along the members: 1.5 times as fast with AVX-512; without it the option changes nothing.
OPTIONS = {"xla_cpu_prefer_vector_width": 512}
_compiled: Any = functools.partial(eqx.filter_jit, compiler_options=OPTIONS)  # pyright: ignore[reportCallIssue]


class Members(NamedTuple):
    """Members of one structure, stacked along a first axis: systems, starts, and a row of numbers each."""

    system: AbstractSystem  # arrays that differ from member to member have the first axis, the others do not
    many: Any  # which of its arrays do
    state: State
    rtol: Float[Array | np.ndarray, " members"]
    atol: Float[Array | np.ndarray, " members"]


class Settings(NamedTuple):
    """What a program is compiled for."""

    solver: str = "dopri8"
    max_steps: int = 1_000_000
    steady: bool = False
    phases: bool = True
    keep: tuple[str, ...] | None = None  # observables that are returned; None: all


class Found(NamedTuple):
    """What a group gives, members first; `failure` as in `integrate`: 0 = horizon, 1 = failure, 2 = steady state."""

    observables: dict[str, Array]
    phases: dict[str, Float[Array, " members"]]
    reached: Int[Array, " members"]
    steps: Int[Array, " members"]
    failure: Int[Array, " members"]


def stack(system: AbstractSystem, states: State, rtol: float, atol: float | Array) -> Members:
    """Members that differ in their start alone; `states` has them on the first axis."""
    count = jax.tree.leaves(states)[0].shape[0]
    full = lambda value: np.broadcast_to(np.asarray(value, float), (count,))
    return Members(system, jax.tree.map(lambda _: False, eqx.filter(system, eqx.is_array)), states, full(rtol), full(atol))


def groups(members: Members, width: int = WIDTH) -> list[Members]:
    """The members in groups of equal width, the last one filled up with copies of the last member."""
    count = members.rtol.shape[0]
    cut = lambda index: _pick(members, np.minimum(np.arange(index, index + width), count - 1))
    return [cut(index) for index in range(0, count, width)]


def _pick(members: Members, index: np.ndarray) -> Members:
    pick = lambda leaf: np.asarray(leaf)[index]  # numpy: jax would compile a program for each shape
    arrays, rest = eqx.partition(members.system, eqx.is_array)
    arrays = jax.tree.map(lambda flag, leaf: pick(leaf) if flag else leaf, members.many, arrays)
    return Members(eqx.combine(arrays, rest), members.many, jax.tree.map(pick, members.state), pick(members.rtol), pick(members.atol))


def each(work: Callable[[Any], Any], things: Iterator[Any] | list[Any], *, workers: int, ahead: int | None = None) -> Iterator[Any]:
    """`work` of all things, in order, so many at a time; `ahead` bounds how many are begun before the first is taken.

    One CPU device runs a program of small loops on one core: as many workers as cores may share it, or one fewer where `cost` finds LAPACK.
    """
    devices = jax.local_devices()

    def one(number: int, thing: Any) -> Any:
        where = nullcontext() if len(devices) == 1 else jax.default_device(devices[number % len(devices)])
        with where:
            return jax.block_until_ready(work(thing))

    waiting: list[Future] = []
    with ThreadPoolExecutor(workers) as pool:
        for number, thing in enumerate(things):
            waiting.append(pool.submit(one, number, thing))
            if number == 0:
                waiting[0].exception()  # wait: two threads would both compile the program
            if ahead is not None and len(waiting) >= ahead:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()


def solve(members: Members, times: Float[Array | np.ndarray, "*members time"], settings: Settings) -> Found:
    """One group. A clock of shape [members, time] is one clock for each."""
    return _program(times, settings)(members, jnp.asarray(times), settings)


class Cost(NamedTuple):
    """What solving a group needs: bytes, by XLA's own count, and whether it calls LAPACK on many matrices at once.

    Such a call waits for other threads of XLA's pool in one of them: as many at a time as there are threads wait for each other forever.
    """

    bytes: int
    lapack: bool


def cost(members: Members, times: Float[Array | np.ndarray, "*members time"], settings: Settings) -> Cost:
    """What solving this group needs; the program is compiled for it."""
    compiled = _program(times, settings).lower(members, jnp.asarray(times), settings).compile().compiled
    analysis = compiled.memory_analysis()
    size = analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes
    return Cost(size, "lapack" in compiled.as_text())


def _program(times: Float[Array | np.ndarray, "*members time"], settings: Settings) -> Any:
    return _shared if settings.solver in EXPLICIT and np.ndim(times) == 1 else _apart


@_compiled
def _shared(members: Members, times: Float[Array, " time"], settings: Settings) -> Found:
    system, flatten, unflatten = members.system, *_flat(members.state)
    fixed, rest = eqx.partition(system, eqx.is_array)
    last = jax.tree.map(lambda flag, leaf: jnp.moveaxis(leaf, 0, -1) if flag else leaf, members.many, fixed)
    start = flatten(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), members.state))

    def along(function: Callable) -> Callable:
        """A function of a system and a state, for the flat states of all members."""
        made = last_axis.prepare(lambda fixed, y: function(eqx.combine(fixed, rest), y), last, members.many, unflatten(start))
        return lambda Y: made(unflatten(Y))

    field = along(lambda system, y: system.vector_field(jnp.zeros(()), y))
    observe = along(lambda system, y: system.observe(y))
    rtol, atol = members.rtol[None], members.atol[None]
    # Proportional and integral: where stability limits the step, far fewer steps are rejected.
    controller = diffrax.PIDController(rtol=rtol, atol=atol, norm=_norm, pcoeff=0.3, icoeff=0.3)  # pyright: ignore[reportArgumentType]
    if settings.solver == "dopri8":  # whose interpolation is worse than its steps, as `integrate` says; that of the others is as good
        controller = diffrax.ClipStepSizeController(controller, step_ts=times)

    def settled(t, Y, args, **_):
        past = along(lambda system, y: jnp.all(jnp.stack([value > 0 for value in system.phases(system.observe(y)).values()])))(Y)
        return jnp.all(past & (jnp.max(jnp.abs(flatten(field(Y))), axis=0) < integrate.STEADY * jnp.max(jnp.abs(Y), axis=0)))

    term = diffrax.ODETerm(lambda t, Y, args: flatten(field(Y)))
    method, event = integrate.SOLVERS[settings.solver](), diffrax.Event(settled) if settings.steady else None
    steady = settings.steady
    more = {"max_steps": settings.max_steps, "event": event, "end": steady, "adjoint": integrate.PLAIN}
    solution = integrate.course(term, method, controller, start, times, **more)
    finite = jnp.maximum(jnp.sum(jnp.cumprod(jnp.all(jnp.isfinite(jnp.asarray(solution.ys)), axis=1), axis=0), axis=0), 1)  # members
    reached = integrate.without_end(finite, steady)
    index = jnp.minimum(jnp.arange(times.size)[:, None], finite[None] - 1)
    Y = jnp.take_along_axis(jnp.asarray(solution.ys), index[:, None], axis=0)  # time x unknowns x members
    observables = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), jax.vmap(observe)(Y))
    states = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), jax.vmap(unflatten)(Y))
    phases = _phases(members, times, states, observables, settings) if settings.phases else {}
    failure = jnp.where(solution.result == diffrax.RESULTS.successful, 0, 1)
    failure = jnp.where(solution.result == diffrax.RESULTS.event_occurred, 2, failure)
    same = lambda value: jnp.broadcast_to(value, reached.shape)
    return Found(_kept(observables, settings), phases, reached, same(solution.stats["num_steps"]), same(failure))


def _kept(observables: dict[str, Array], settings: Settings) -> dict[str, Array]:
    return {name: array for name, array in observables.items() if settings.keep is None or name in settings.keep}


def _norm(scaled: Float[Array, "unknowns members"]) -> Float[Array, ""]:
    """The root mean square of the member with the largest one."""
    return jnp.sqrt(jnp.max(jnp.mean(scaled**2, axis=0)))


def _flat(state: State) -> tuple[Callable, Callable]:
    """Between a tree of arrays with members last and one array [unknowns, members]."""
    leaves, structure = jax.tree.flatten(state)
    shapes = [leaf.shape[1:] for leaf in leaves]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

    def flatten(tree: State) -> Float[Array, "unknowns members"]:
        return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in jax.tree.leaves(tree)])

    def unflatten(Y: Float[Array, "unknowns members"]) -> State:
        parts = jnp.split(Y, ends)
        return jax.tree.unflatten(structure, [part.reshape(*shape, -1) for part, shape in zip(parts, shapes, strict=True)])

    return flatten, unflatten


def _phases(members: Members, times, states: State, observables: dict[str, Array], settings: Settings) -> dict[str, Array]:
    arrays, rest = eqx.partition(members.system, eqx.is_array)

    def one(arrays, states, observables, rtol, atol):
        system = eqx.combine(arrays, rest)
        term = diffrax.ODETerm(lambda t, y, args: system.vector_field(t, y))
        controller = diffrax.PIDController(rtol=rtol, atol=atol)
        return integrate._locate(
            system, term, integrate.SOLVERS[settings.solver](), controller, times, states, observables, settings.max_steps
        )

    places = jax.tree.map(lambda flag: 0 if flag else None, members.many)
    return jax.vmap(one, in_axes=(places, 0, 0, 0, 0))(arrays, states, observables, members.rtol, members.atol)


@_compiled
def _apart(members: Members, times: Float[Array, "*members time"], settings: Settings) -> Found:
    """`vmap` of the single solve."""
    arrays, rest = eqx.partition(members.system, eqx.is_array)

    def one(arrays, state, times, rtol, atol):
        system = eqx.combine(arrays, rest)
        return integrate._integrate(system, state, times, rtol, atol, settings.solver, settings.max_steps, settings.steady, settings.phases)

    places = jax.tree.map(lambda flag: 0 if flag else None, members.many)
    clock = 0 if times.ndim == 2 else None
    found = Found(*jax.vmap(one, in_axes=(places, 0, clock, 0, 0))(arrays, members.state, times, members.rtol, members.atol))
    return found._replace(observables=_kept(found.observables, settings))


def tolerance(state: State, rtol: float) -> Float[Array, " members"]:
    """The absolute tolerances that `integrate.solve` would take for starts stacked along the first axis."""
    return rtol * jax.vmap(largest)(state)
