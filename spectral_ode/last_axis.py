r"""`vmap` with the members on the last axis, written out so that a CPU runs along them.

A field of a few dozen unknowns, batched by `jax.vmap`, becomes tiny matrix products with the members in front, and the machine spends its
time on their bookkeeping. Here the field's jaxpr is run with one more axis behind all others: sums and small matrix products are written
out as sums of slices, factors being sliced before they are multiplied; everything element by element stays as it is, and XLA fuses all of
it into loops whose inner index is the member. The algebra is the same; the vector field of 36 unknowns of linear attention takes an eighth
of the time (benchmarks/flows.py).

`prepare` splits a function f(fixed, moving) further: whatever does not depend on `moving` is computed once, in front of the solver's loop.
A primitive without a rule here is left to `jax.vmap`.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

UNROLLED = 32  # sums of at most so many terms are written out
# fmt: off
ELEMENTWISE = frozenset([
    "add", "sub", "mul", "div", "rem", "neg", "sign", "abs", "floor", "ceil", "round", "max", "min", "clamp", "exp", "exp2",
    "expm1", "log", "log1p", "logistic", "sqrt", "rsqrt", "cbrt", "square", "pow", "integer_pow", "sin", "cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma",
    "digamma", "is_finite", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n",
    "convert_element_type", "copy",
])
SAME_AXES = frozenset([
    "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "cumsum", "cumprod", "cummax",
    "cummin", "rev", "squeeze",
])
# fmt: on
CALLS = frozenset(["jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"])


class Value(NamedTuple):
    """An array, and whether its last axis counts members."""

    array: Any
    many: bool


class _Step(NamedTuple):
    """One primitive, its variables renamed so that inlined calls cannot collide."""

    eqn: Any
    ins: tuple[Any, ...]  # a name, or a Literal
    outs: tuple[int, ...]
    factors: bool = False  # a sum whose `ins` are the two factors of its summand


def prepare(function: Callable, fixed: Any, many: Any, moving: Any) -> Callable:
    """The function of the moving arguments alone: y -> function(fixed, y), for members on the last axis of y.

    `many` has the structure of `fixed` and says which of its arrays have members on their last axis, too; `moving` is an example.
    """
    leaves, structure = jax.tree.flatten(fixed)
    flags = jax.tree.leaves(many)
    examples, shape = jax.tree.flatten(moving)
    width = examples[0].shape[-1]
    one = lambda leaf, flag: jax.ShapeDtypeStruct(leaf.shape[:-1] if flag else leaf.shape, leaf.dtype)
    flat = lambda fixed, moving: function(jax.tree.unflatten(structure, fixed), jax.tree.unflatten(shape, moving))
    arguments = [one(*pair) for pair in zip(leaves, flags, strict=True)], [one(leaf, True) for leaf in examples]
    closed, result = jax.make_jaxpr(flat, return_shape=True)(*arguments)
    steps, values, outs, names = _inline(closed)
    steps = _sums_of_products(steps, outs)
    values |= {name: Value(leaf, flag) for name, leaf, flag in zip(names, leaves, flags, strict=False)}
    inputs, unknown, later = names[len(leaves) :], set(names[len(leaves) :]), []
    for step in steps:
        if any(not isinstance(name, Literal) and name in unknown for name in step.ins):
            later.append(step)
            unknown |= set(step.outs)
        else:
            _take(step, values, width)

    def call(moving: Any) -> Any:
        now = values | {name: Value(leaf, True) for name, leaf in zip(inputs, jax.tree.leaves(moving), strict=True)}
        for step in later:
            _take(step, now, width)
        return jax.tree.unflatten(jax.tree.structure(result), [_spread(_read(name, now), width) for name in outs])

    return call


def _inline(closed) -> tuple[list[_Step], dict[int, Value], list, list[int]]:
    """All primitives of a jaxpr in order, calls inlined; its constants; the names of what it returns and takes."""
    steps: list[_Step] = []
    values: dict[int, Value] = {}
    fresh = iter(range(10**9))

    def walk(jaxpr, constants, names: list) -> list:
        known = dict(zip(jaxpr.invars, names, strict=True))
        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = next(fresh)
            values[known[variable]] = Value(jnp.asarray(constant), False)
        look = lambda variable: variable if isinstance(variable, Literal) else known[variable]
        for eqn in jaxpr.eqns:
            ins = [look(variable) for variable in eqn.invars]
            if eqn.primitive.name in CALLS:
                inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
                found = walk(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), ins)
            else:
                found = [next(fresh) for _ in eqn.outvars]
                steps.append(_Step(eqn, tuple(ins), tuple(found)))
            known |= dict(zip(eqn.outvars, found, strict=True))
        return [look(variable) for variable in jaxpr.outvars]

    names = [next(fresh) for _ in closed.jaxpr.invars]
    return steps, values, walk(closed.jaxpr, closed.consts, names), names


def _sums_of_products(steps: list[_Step], outs: list) -> list[_Step]:
    """Products that are summed and used nowhere else become part of their sum: they are sliced before they are multiplied."""
    uses = Counter(name for name in [*(name for step in steps for name in step.ins), *outs] if not isinstance(name, Literal))
    once = {step.outs[0]: step for step in steps if _is_product(step) and uses[step.outs[0]] == 1}
    summed = {step.ins[0] for step in steps if step.eqn.primitive.name == "reduce_sum" and 0 < _terms(step.eqn) <= UNROLLED} & once.keys()

    def merge(step: _Step) -> _Step:
        inside = step.eqn.primitive.name == "reduce_sum" and step.ins[0] in summed
        return step._replace(ins=once[step.ins[0]].ins, factors=True) if inside else step

    return [merge(step) for step in steps if step.outs[0] not in summed]


def _is_product(step: _Step) -> bool:
    return step.eqn.primitive.name == "mul" and len({variable.aval.ndim for variable in step.eqn.invars}) == 1


def _read(name: Any, values: dict[int, Value]) -> Value:
    if isinstance(name, Literal):
        return Value(jnp.asarray(name.val, name.aval.dtype), False)  # pyright: ignore[reportAttributeAccessIssue]
    return values[name]


def _spread(value: Value, width: int) -> Any:
    """The array with members on its last axis in any case."""
    return value.array if value.many else jnp.broadcast_to(value.array[..., None], (*value.array.shape, width))


def _take(step: _Step, values: dict[int, Value], width: int) -> None:
    ins = [_read(name, values) for name in step.ins]
    found, many = _product(step.eqn, ins) if step.factors else _apply(step.eqn, ins, width)
    values |= {name: Value(array, many) for name, array in zip(step.outs, found, strict=True)}


def _apply(eqn, ins: list[Value], width: int) -> tuple[list, bool]:
    """One primitive on arrays whose members, where they have any, are last; and whether the result has members."""
    name, params, arrays = eqn.primitive.name, eqn.params, [value.array for value in ins]
    several = lambda found: found if eqn.primitive.multiple_results else [found]
    if not any(value.many for value in ins):
        return several(eqn.primitive.bind(*arrays, **params)), False
    all_many = [_spread(value, width) for value in ins]
    first = arrays[0]
    if name in ELEMENTWISE:
        # A scalar beside arrays is allowed by these primitives; with members it has to be widened.
        size = max(all_many, key=lambda array: array.ndim).shape
        wide = [array if array.ndim == len(size) else jnp.broadcast_to(array, size) for array in all_many]
        return [eqn.primitive.bind(*wide, **params)], True
    if name == "broadcast_in_dim":
        place = (*params["broadcast_dimensions"], len(params["shape"]))
        return [lax.broadcast_in_dim(first, (*params["shape"], width), place)], True
    if name == "reshape":
        return [first.reshape(*params["new_sizes"], width)], True
    if name == "transpose":
        return [lax.transpose(first, (*params["permutation"], first.ndim - 1))], True
    if name == "slice":
        steps = (*params["strides"], 1) if params["strides"] is not None else None
        return [lax.slice(first, (*params["start_indices"], 0), (*params["limit_indices"], width), steps)], True
    if name == "concatenate":
        return [lax.concatenate(all_many, params["dimension"])], True
    if name in SAME_AXES:
        return several(eqn.primitive.bind(first, **params)), True
    if name == "reduce_sum":
        return [_sum(first, params["axes"])], True
    if name == "dot_general" and _terms(eqn) <= UNROLLED:
        return [_dot(ins, [variable.aval.ndim for variable in eqn.invars], *params["dimension_numbers"])], True
    places = [-1 if value.many else None for value in ins]
    return several(jax.vmap(functools.partial(eqn.primitive.bind, **params), in_axes=places, out_axes=-1)(*arrays)), True


def _product(eqn, ins: list[Value]) -> tuple[list, bool]:
    """sum_i a_i b_i, slice by slice: the array of products, which XLA would write into memory, never exists."""
    many, shape = any(value.many for value in ins), eqn.invars[0].aval.shape
    sides = [value.array[..., None] if many and not value.many else value.array for value in ins]
    terms = [sides]
    for axis in sorted(eqn.params["axes"], reverse=True):
        # An axis of one counts for all.
        cut = lambda side, i, axis=axis: lax.index_in_dim(side, min(i, side.shape[axis] - 1), axis, keepdims=False)
        terms = [[cut(side, i) for side in pair] for pair in terms for i in range(shape[axis])]
    return [functools.reduce(jnp.add, [a * b for a, b in terms])], many


def _sum(array, axes: tuple[int, ...]):
    for axis in sorted(axes, reverse=True):
        if 0 < array.shape[axis] <= UNROLLED:
            array = functools.reduce(jnp.add, [lax.index_in_dim(array, i, axis, keepdims=False) for i in range(array.shape[axis])])
        else:
            array = jnp.sum(array, axis=axis)
    return array


def _terms(eqn) -> int:
    """How many products or numbers are added up."""
    axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["dimension_numbers"][0][0]
    return math.prod(eqn.invars[0].aval.shape[axis] for axis in axes)


def _dot(ins: list[Value], ranks: list[int], contracted: tuple, batched: tuple):
    """A product of small matrices as a sum of outer products."""
    sides = []
    for side, (value, rank) in enumerate(zip(ins, ranks, strict=True)):
        array = value.array if value.many else value.array[..., None]
        inner, shared = contracted[side], batched[side]
        free = [axis for axis in range(rank) if axis not in (*inner, *shared)]
        array = array.transpose(*inner, *shared, *free, rank)
        sizes = array.shape[len(inner) :]
        sides.append((array.reshape(-1, *sizes), len(shared), len(free)))
    (left, shared, mine), (right, _, theirs) = sides
    left = left.reshape(*left.shape[: 1 + shared + mine], *[1] * theirs, left.shape[-1])
    right = right.reshape(*right.shape[: 1 + shared], *[1] * mine, *right.shape[1 + shared :])
    return functools.reduce(jnp.add, [a * b for a, b in zip(left, right, strict=True)])
