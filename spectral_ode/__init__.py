"""One problem, answered twice: reduced ODEs of attention that learns in context, and the trained network beside them.

Names are imported when they are first used, so that `import spectral_ode` and the command line stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spectral_ode import systems as systems
    from spectral_ode.document import load as load
    from spectral_ode.flow import PopulationFlow as PopulationFlow
    from spectral_ode.integrate import solve as solve
    from spectral_ode.integrate import solve_problem as solve_problem
    from spectral_ode.problem import BadInput as BadInput
    from spectral_ode.problem import Problem as Problem
    from spectral_ode.runtime import configure as configure
    from spectral_ode.sensitivities import sensitivity as sensitivity
    from spectral_ode.sweeps.call import sweep as sweep
    from spectral_ode.system import AbstractSystem as AbstractSystem
    from spectral_ode.trajectory import Trajectory as Trajectory
    from spectral_ode.weights import draw as draw

_HOME = {
    "AbstractSystem": "system",
    "BadInput": "problem",
    "PopulationFlow": "flow",
    "Problem": "problem",
    "Trajectory": "trajectory",
    "configure": "runtime",
    "draw": "weights",
    "load": "document",
    "sensitivity": "sensitivities",
    "solve": "integrate",
    "solve_problem": "integrate",
    "sweep": "sweeps.call",
}

__all__ = [
    "AbstractSystem",
    "BadInput",
    "PopulationFlow",
    "Problem",
    "Trajectory",
    "configure",
    "draw",
    "load",
    "sensitivity",
    "solve",
    "solve_problem",
    "sweep",
    "systems",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"spectral_ode.{_HOME[name]}"), name)
    if name == "systems":
        return importlib.import_module("spectral_ode.systems")
    raise AttributeError(f"module 'spectral_ode' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
