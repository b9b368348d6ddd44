"""What a reduction is: the contract between a paper's equations and everything that uses them."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.problem import BadInput, Problem

State = Any  # a tree of float arrays: the state of one reduction
Weights = Any  # one of the containers of `spectral_ode.weights`
Observed = dict[str, Array]


FIRST = {"linear-regression": "linear.separate", "multi-task": "softmax.balanced", "sparse-regression": "sparse.depth"}


def require_task(problem: Problem, name: str, kind: str) -> None:
    """Raise `BadInput` unless the task is of the kind that a system is for; named is a system for the kind it has."""
    if problem.task.kind != kind:
        raise BadInput(f"system {name} is for task.kind {kind}, but it is {problem.task.kind}; use --system {FIRST[problem.task.kind]}")


class AbstractSystem(eqx.Module):
    """One reduction, as a paper states it. Subclasses are final; each lives in a file of `spectral_ode.systems`."""

    labels: ClassVar[dict[str, str]] = {"reduced": "reduced ODE", "population": "population flow of all weights"}  # rungs in pictures
    every_block: ClassVar[bool] = False  # whether `observe_weights` asks a trained model for all its blocks instead of the acting ones

    @classmethod
    @abc.abstractmethod
    def from_problem(cls, problem: Problem) -> "AbstractSystem":
        """The reduction of a problem; raises `BadInput` where the problem does not admit it."""

    @abc.abstractmethod
    def missing(self, problem: Problem) -> dict[str, str]:
        """The rungs ("reduced", "population") that do not describe this problem, each with the reason in a few words."""

    @abc.abstractmethod
    def project(self, weights: Weights) -> State:
        """The state matched to full weights, without any fit."""

    @abc.abstractmethod
    def vector_field(self, t: Float[Array, ""], state: State) -> State:
        """Time derivative of the state."""

    @abc.abstractmethod
    def observe(self, state: State) -> Observed:
        """Named observables of a state."""

    @abc.abstractmethod
    def observe_weights(self, weights: Weights) -> Observed:
        """The same names (and perhaps more) from full weights."""

    @abc.abstractmethod
    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """Named landmarks of the course: each value crosses zero upwards at its moment."""

    @abc.abstractmethod
    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """Levels worth a line in a picture: observable -> label -> value, the loss first, its levels from the start to the end."""

    @abc.abstractmethod
    def population(self) -> "AbstractSystem":
        """The exact gradient flow on infinitely many sequences: the rung between this reduction and training."""

    @abc.abstractmethod
    def forecast(self, weights: Weights) -> dict[str, Array]:
        """What follows from the start alone, without integrating: named arrays (empty where the paper has no such law)."""

    @abc.abstractmethod
    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """The testable statements about this reduction, with bounds for this problem."""
