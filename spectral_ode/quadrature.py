"""Double-exponential quadrature: nodes and weights for integrands that may be singular at the ends."""

import numpy as np


def interval(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Tanh-sinh nodes on (0, 1) as distances from either end, with weights."""
    x, step = np.linspace(-3.2, 3.2, nodes, retstep=True)
    u = 0.5 * np.pi * np.sinh(x)
    return 1.0 / (1.0 + np.exp(-2.0 * u)), step * 0.5 * np.pi * np.cosh(x) * 0.5 / np.cosh(u) ** 2


def half_line(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes on (0, inf) with weights, for integrands that decay like e^-x and may be steep or singular at 0."""
    x, step = np.linspace(-3.6, 3.9, nodes, retstep=True)
    node = np.exp(x - np.exp(-x))
    return node, step * node * (1.0 + np.exp(-x))
