"""The right sides and closed forms of the systems once more, in plain numbers: no JAX, nothing shared with `spectral_ode.systems`.

A field here is written from the equations of the papers and of the module docstrings, for numpy arrays of any numbers, mpmath's of thirty
digits among them. A system without one is refereed by scipy alone.
"""

from spectral_ode.problem import Problem
from validate.plain import linear, linear_forms, softmax, softmax_forms, sparse, sparse_forms
from validate.plain.numbers import Field as Field

FIELDS = {**linear.FIELDS, **softmax.FIELDS, **sparse.FIELDS}
# By system: families of closed forms, each a function of a problem; the cheap and basic ones first.
FORMS = linear_forms.FORMS | softmax_forms.FORMS | sparse_forms.FORMS


def field(problem: Problem, rung: str) -> Field | None:
    """The field of a problem's flow in plain numbers, if one was written."""
    make = FIELDS.get((problem.system, rung))
    return make(problem) if make else None
