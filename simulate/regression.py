r"""Direct in-context regression, without a network: the referees of what attention computes.

Principal component regression with m components on a context of N noise-free labels predicts w^T Phat x_q, Phat the projector on the m
leading components of that context. Attention at plateau m predicts beta^T A x_q with A = sum_{d <= m} e_d e_d^T / (lam_d c_d). To leading
order both differ from w^T P x_q by the sampling error of the context's covariance, var(Lhat_de) = lam_d lam_e (1 + [d = e]) / N, and from
each other by (ours, for a task covariance I)

    E(yhat - PCR)^2 = (1/N) { sum_{d <= m} (lam_d + sum_{e <= m} lam_e) + sum_{d <= m < e} (lam_e^3 + lam_d lam_e^2) / (lam_d - lam_e)^2 }.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from simulate.attention import Prompt


def principal_components(prompt: Prompt, components: int) -> Float[Array, ""]:
    """Principal component regression on the context: least squares along its leading components, then the query's label."""
    x, y = prompt.tokens[:-1, :-1], prompt.tokens[-1, :-1]
    directions, sizes, scores = jnp.linalg.svd(x, full_matrices=False)
    fit = (scores @ y)[:components] / sizes[:components]
    return jnp.dot(directions[:, :components] @ fit, prompt.tokens[:-1, -1])


def leading_error(spectrum: tuple[float, ...], components: int, context: int) -> float:
    """The leading term of E(yhat - PCR)^2 at plateau m."""
    lam = np.sort(np.asarray(spectrum))[::-1]
    kept, cut = lam[:components, None], lam[None, components:]
    own = np.sum(kept) + components * np.sum(kept)
    return float(own + np.sum((cut**3 + kept * cut**2) / (kept - cut) ** 2)) / context
