"""Linear attention that learns in context, whole. Paper: arXiv:2501.16265 (Zhang, Singh, Latham, Saxe, ICML 2025).

`data` holds what all three systems know about the sequences. `separate` has key and query apart (saddle to saddle), with the closed form
of its curve in `_scalar`, the forecast from the start in `_escape` and the fixed points in `_saddles`. `merged` has them in one matrix
(one abrupt drop). `blocks` follows every block of either (in-weight against in-context learning).
"""

from spectral_ode.systems.linear.blocks import Blocks as Blocks
from spectral_ode.systems.linear.data import Statistics as Statistics
from spectral_ode.systems.linear.merged import Merged as Merged
from spectral_ode.systems.linear.separate import Separate as Separate
