"""Claims measured: experiments on every rung, metrics between rungs, verdicts with numbers."""

from validate.check import Verdict as Verdict
from validate.check import check as check
from validate.experiment import Experiment as Experiment
from validate.experiment import perform as perform
