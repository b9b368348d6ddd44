"""Claims that every system makes, whichever paper it comes from: a new file is covered on arrival.

They are measured by the quick tier of `python -m validate` beside the system's own; what takes longer has the tier "full".
"""

from spectral_ode.claims import Claim
from validate import integration, referees, sampled, slopes, symmetry
from validate.courses import Flows
from validate.experiment import Experiment


def claims(experiment: Experiment) -> tuple[Claim, ...]:
    """All of them; flows are integrated once, when the first claim asks for them."""
    flows = Flows(experiment)
    return tuple(claim for part in (integration, referees, symmetry, slopes, sampled) for claim in part.claims(flows))
