"""Softmax attention that learns in context. Paper: arXiv:2402.19442 (Chen, Sheen, Wang, Yang, COLT 2024).

`_leading` has the loss and the flows to leading order in 1/L, `_optimal` the limits and what they are measured against,
`_expectations` (with its `_tables`) the exact expectations at finite L.
"""
