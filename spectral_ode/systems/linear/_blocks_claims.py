"""What arXiv:2501.16265, Figure 14, and we claim about every block of linear attention and sequences that share a task."""

import jax
import jax.numpy as jnp

from spectral_ode.claims import Agrees, Claim, Identity
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import _shared_claims as shared


def blocks(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `linear.Blocks`, with bounds for this problem."""
    from spectral_ode.systems.linear.merged import Merged
    from spectral_ode.systems.linear.separate import Separate

    if problem.attention.activation == "softmax":
        return ()
    rough = max(1.0, shared.sampled(problem))
    claims: list[Claim] = [shared.same_training()]
    if problem.regression.in_context == 1:
        acting = (Merged if problem.attention.kind == "merged" else Separate).from_problem(problem)
        flat = lambda tree: jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])
        claims.append(
            Identity(
                name="with a task for each sequence: the flow of the acting blocks, and none of the others",
                place="Section 2",
                exactness="exact",
                bound=1e-12,
                reason="the same algebra in float64, the zero blocks by symmetry under w -> -w",
                left=lambda weights: flat(system.vector_field(jnp.zeros(()), system.project(weights))),
                right=lambda weights: flat(system.project(acting.weights_field(weights))),
            )
        )
    elif problem.sequence_training.test_sequences > 0:
        claims += [
            Agrees(
                name="time shift of the first drop, training vs flow of all blocks",
                place="ours",
                exactness="asymptotic in the number of sequences and the learning rate",
                bound=min(0.03 * rough, 0.15),
                reason="3 % for 80,000 evenly sampled sequences, like 1/sqrt(sequences), three times that for iid ones",
                first="training",
                second="reduced",
                metric="half-drop times",
            ),
            Agrees(
                name="test losses of training vs flow of all blocks",
                place="ours",
                exactness="asymptotic in the number of sequences, of test sequences and the learning rate",
                bound=min(0.1 * rough, 0.3),
                reason="median gap over the course, in units of the start loss; training and test sets are samples",
                first="training",
                second="reduced",
                metric="tests",
            ),
        ]
        if problem.regression.in_context > 0:
            claims.append(
                Agrees(
                    name="in-weight learning is transient: its test loss dips, then rises again",
                    place="Figure 14",
                    exactness="heuristic",
                    bound=0.9,
                    reason="lowest in-weight test loss over the last one, in the flow and in training, the worse of the two",
                    first="training",
                    second="reduced",
                    metric="transience",
                )
            )
    return tuple(claims)
