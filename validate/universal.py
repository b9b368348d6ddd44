"""Claims that every system makes, whichever paper it comes from: a new file is covered on arrival.

They are measured by the quick tier of `python -m validate` beside the system's own; what takes longer has the tier "full".
"""

from dataclasses import replace

from spectral_ode.claims import Claim
from validate import integration, referees, sampled, slopes, symmetry
from validate.courses import Flows
from validate.experiment import Experiment


def claims(experiment: Experiment) -> tuple[Claim, ...]:
    """All of them; flows are integrated once, when the first claim asks for them."""
    flows = Flows(experiment)
    found = tuple(claim for part in (integration, referees, symmetry, slopes, sampled) for claim in part.claims(flows))
    if not flows.shallow:
        return found
    deep = Flows(experiment, deep=True)
    again = (claim for part in (integration, referees, symmetry, slopes) for claim in part.claims(deep))
    return found + tuple(replace(claim, name=f"{claim.name} (finite-L flow, too)", tier="full") for claim in again)
