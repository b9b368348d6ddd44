"""Claims measured: experiments on every rung, metrics between rungs, verdicts with numbers."""

import sys

from spectral_ode import runtime

if sys.argv[:1] == ["-m"]:  # `python -m validate` imports this before its own first line, and jax must be set up before it is imported
    runtime.configure()

from validate.check import Verdict as Verdict
from validate.check import check as check
from validate.experiment import Experiment as Experiment
from validate.experiment import perform as perform
