"""Softmax attention that learns in context. Paper: arXiv:2402.19442 (Chen, Sheen, Wang, Yang, COLT 2024).

`_leading` has the loss and the fields to leading order in 1/L; `spectral` has the flows of all heads and tasks, `phases` the equations of
the phases. `_optimal` has the limits and what they are measured against, `_expectations` (with its `_tables`) the exact loss at
finite L, `_orders` both orders side by side, and `_view` how full weights are seen as a spectrum.
"""

from spectral_ode.systems.softmax.phases import Emergence as Emergence
from spectral_ode.systems.softmax.phases import Slaved as Slaved
from spectral_ode.systems.softmax.phases import Warmup as Warmup
from spectral_ode.systems.softmax.spectral import Balanced as Balanced
from spectral_ode.systems.softmax.spectral import Factored as Factored
