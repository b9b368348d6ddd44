"""The small problems of `validate.tiers` under the names that the tests use."""

from dataclasses import replace

from spectral_ode import Problem
from validate.tiers import DEPTH, GAINS
from validate.tiers import SEPARATE as SMALL
from validate.tiers import SPECTRAL as SPECTRAL
from validate.tiers import of_system as of_system

SPARSE = {"sparse.depth": DEPTH, "sparse.gains": GAINS}


def with_training(**changes) -> Problem:
    return replace(SMALL, training=replace(SMALL.training, **changes))
