"""Full-parameter models and their training."""

from simulate.attention import MergedAttention as MergedAttention
from simulate.attention import SeparateAttention as SeparateAttention
from simulate.train import train as train
from simulate.unroll import unroll as unroll
