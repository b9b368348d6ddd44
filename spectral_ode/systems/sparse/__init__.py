"""Sparse regression in context: preprocess, then optimize. Paper: arXiv:2408.04532 (Chen, Zhao, Zou, NeurIPS 2024).

`data` has the tasks, `_algorithms` the preprocessed and the plain descent with their referees. `depth` is the flow over layers,
`_two_groups` its reduction and `_risk` what it can reach. `gains` is the training of the construction, `_moments` the correlations of a
context that it needs. The paper's text was not at hand: formulas are derived here, and said to be.
"""

from spectral_ode.systems.sparse.data import Law as Law
from spectral_ode.systems.sparse.depth import Depth as Depth
from spectral_ode.systems.sparse.gains import Gains as Gains
