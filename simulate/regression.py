"""Direct in-context regression, without a network: the referees of what attention computes."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from simulate.attention import Prompt


def principal_components(prompt: Prompt, components: int) -> Float[Array, ""]:
    """Principal component regression on the context: least squares along its leading components, then the query's label."""
    x, y = prompt.tokens[:-1, :-1], prompt.tokens[-1, :-1]
    directions, sizes, scores = jnp.linalg.svd(x, full_matrices=False)
    fit = (scores @ y)[:components] / sizes[:components]
    return jnp.dot(directions[:, :components] @ fit, prompt.tokens[:-1, -1])
