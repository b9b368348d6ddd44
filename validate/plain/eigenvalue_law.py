"""The Marchenko-Pastur law by quadrature over its density, sqrt((b - x)(x - a))/(2 pi gamma x), and its atom at zero for gamma > 1."""

import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad

from spectral_ode import marchenko_pastur
from validate.plain.numbers import Form


def mean_law(function, gamma: float, *, atom: bool = True) -> float:
    """The average of a function over the Marchenko-Pastur law."""
    a, b = (1 - np.sqrt(gamma)) ** 2, (1 + np.sqrt(gamma)) ** 2
    density = lambda x: np.sqrt((b - x) * (x - a)) / (2 * np.pi * gamma * x)
    middle = lambda angle: 0.5 * (a + b) - 0.5 * (b - a) * np.cos(angle)
    part = quad(
        lambda angle: function(middle(angle)) * density(middle(angle)) * 0.5 * (b - a) * np.sin(angle), 0, np.pi, epsabs=1e-13, limit=200
    )
    return part[0] + (function(0.0) * (1 - 1 / gamma) if atom and gamma > 1 else 0.0)


def law() -> dict[str, Form]:
    """Risks by the Marchenko-Pastur law, for more and for fewer tokens than coordinates."""
    S, sigma2, tau, p = 1.4, 0.6, np.asarray([0.3, 2.0]), 0.3
    found: dict[str, Form] = {}
    for gamma in (0.4, 2.5):
        z = gamma * sigma2 / S
        flow = [
            mean_law(
                lambda x, t=t, gamma=gamma: S * np.exp(-2 * x * t) + (sigma2 * gamma * (1 - np.exp(-x * t)) ** 2 / x if x > 0 else 0.0),
                gamma,
            )
            for t in tau
        ]
        ridge = mean_law(lambda x, gamma=gamma: (S * p**2 + sigma2 * gamma * x) / (x + p) ** 2, gamma)
        bayes = mean_law(lambda x, z=z: S * z / (x + z), gamma)
        mine = (
            marchenko_pastur.flow_risk(jnp.asarray(tau), gamma, S=S, sigma2=sigma2),
            marchenko_pastur.ridge_risk(gamma, p, S=S, sigma2=sigma2),
            marchenko_pastur.bayes_risk(gamma, S=S, sigma2=sigma2),
        )
        lam, weight = marchenko_pastur.spectrum(gamma)
        mass, mean = (mean_law(function, gamma, atom=False) for function in (lambda x: 1.0, lambda x: x))
        found[f"Marchenko-Pastur, gamma {gamma:g}"] = Form(
            (*mine, weight.sum(), weight @ lam), (np.asarray(flow), ridge, bayes, mass, mean), 1e-9
        )
    return found
