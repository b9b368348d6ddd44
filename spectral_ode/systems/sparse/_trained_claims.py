"""What arXiv:2408.04532 reports of trained transformers, as statements that a training can be held against.

The paper trains larger models for longer. What does not appear at the size of a problem is measured and shown, and not judged.
"""

from spectral_ode.claims import Agrees, Claim
from spectral_ode.problem import Problem

PAPER = "the paper's experiments (its Figure 1), sizes ours"
SMALL = "the paper's pattern belongs to larger models and longer training than this one"


def trained(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims about a trained transformer, by its kind of attention."""
    alone = problem.transformer.heads == 1
    one = "the model has one head itself" if alone else ""
    pair = {"first": "training", "second": "training", "place": PAPER, "exactness": "heuristic"}
    more = Agrees(
        name="risk with these heads over risk with one head",
        bound=0.5,
        reason="at most half; median over runs, the same steps, tasks and start scale",
        metric="one head",
        beyond=one,
        **pair,
    )
    ridge = Agrees(
        name="risk over that of the best ridge regression",
        bound=1.0,
        reason="a model that uses sparsity lies below every estimator that does not",
        metric="ridge",
        beyond="one head is not expected to" if alone else "",
        **pair,
    )
    later = Agrees(
        name="risk with all later layers pruned to one head over full risk, refitted",
        bound=2.0,
        reason="the paper: pruned as good as full; some more training after pruning",
        metric="later layers pruned",
        tier="validate",
        beyond=SMALL,
        **pair,
    )
    if problem.attention.kind == "linear-transformer":
        return (
            more,
            ridge,
            Agrees(
                name="one head alone: how far below the best ridge regression",
                bound=0.25,
                reason="a share of the ridge risk; one head is stuck at about that level, by chance up to a quarter below",
                metric="one head at ridge",
                **pair,
            ),
            Agrees(
                name="heads used by the last layer over those of the first",
                bound=1.0,
                reason="the first layer needs most heads; gauge-free count by the Schmidt spectrum, median over runs",
                metric="heads by layer",
                beyond=one,
                **pair,
            ),
            Agrees(
                name="risk with the last layer pruned to one head over risk with the first pruned, refitted",
                bound=1.0,
                reason="the first layer is the one that cannot spare its heads; canonical heads, some more training after pruning",
                metric="last layer pruned",
                tier="validate",
                beyond=one,
                **pair,
            ),
            later,
        )
    return (
        ridge,
        Agrees(
            name="each layer lowers the risk of a linear probe",
            bound=1.0,
            reason="largest ratio of the probe's risk after a block to that before it, median over runs",
            metric="probes",
            **pair,
        ),
        Agrees(
            name="heads used by the later layers over those of the first",
            bound=0.5,
            reason="the paper: all heads in the first layer, one in each later layer; by masking, median over runs",
            metric="heads by mask",
            beyond=SMALL,
            **pair,
        ),
        later,
    )
