"""Full-parameter models and their training."""

from simulate.attention import MergedAttention as MergedAttention
from simulate.attention import SeparateAttention as SeparateAttention
from simulate.checkpoint import Keeper as Keeper
from simulate.cost import cost as cost
from simulate.train import train as train
from simulate.unroll import unroll as unroll
