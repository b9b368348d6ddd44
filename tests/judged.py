"""One claim of an experiment, measured on its own."""

from validate.check import Verdict, claims_of, judge
from validate.experiment import Experiment
from validate.tiers import TIERS


def verdict(experiment: Experiment, words: str) -> Verdict:
    """On the one claim of the quick tier whose name has these words."""
    (found,) = [claim for claim in claims_of(experiment, TIERS) if words in claim.name]
    return judge(found, experiment)
