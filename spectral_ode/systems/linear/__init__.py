"""Linear attention that learns in context, whole. Paper: arXiv:2501.16265 (Zhang, Singh, Latham, Saxe, ICML 2025).

`separate` has key and query apart (saddle to saddle), `merged` has them in one matrix (one abrupt drop), `blocks` follows every
block of either (in-weight against in-context learning). `data` holds what the three know about the sequences.
"""

from spectral_ode.systems.linear.blocks import Blocks as Blocks
from spectral_ode.systems.linear.data import Statistics as Statistics
from spectral_ode.systems.linear.merged import Merged as Merged
from spectral_ode.systems.linear.separate import Separate as Separate
