"""Ours, on a statement of arXiv:2501.16265, Section 4: at plateau m attention does principal component regression with m components.

a  prediction of attention at plateau 2 against principal component regression on the same held-out prompts, for a short and a long context
b  mean squared difference over context length N, at each plateau, with its leading term (ours, see `simulate.regression`)
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import simulate
from figures import panels, style
from simulate.regression import leading_error, principal_components
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment
from validate.trials import held_out, plateau_weights

PAPER = "arXiv:2501.16265, ours"
SECONDS = (20, 8)
CONTEXTS = (16, 32, 64, 128, 256, 512, 1024)
SHOWN = 2  # the plateau of panel a
WITHOUT = "training"  # what is drawn are weights of the population flow
CAPTION = (
    "Principal component regression in context. Weights of the population flow half-way along plateau m, asked about 4,000 "
    "held-out prompts. (a) Prediction at plateau 2 against principal component regression with two components on the same context, "
    "computed directly. (b) Mean squared difference over the context length: it falls as 1/N; dashed: its leading term (ours), no "
    "fit."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The staircase at several context lengths; training is not used, so it is short."""
    base = panels.varied(
        document.load("saddle-to-saddle"), points=1500, training__sequences=64, training__sampling="iid", start__scale=0.02
    )
    base = panels.varied(base, horizon=60_000, training__learning_rate=1.0)
    return {f"context {context}": panels.varied(base, task__context=context) for context in (CONTEXTS[1:6:2] if fast else CONTEXTS)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Both panels."""
    with plt.style.context(style.STYLE):
        figure, (scatter, law) = style.grid(width, 1, 2, height=3.1)
        errors: dict[int, list[tuple[int, float]]] = {}
        shown = list(experiments.values())[:: max(len(experiments) - 1, 1)]
        for experiment in experiments.values():
            for m in range(1, len(experiment.problem.regression.spectrum)):
                ours, direct = predictions(experiment, m)
                errors.setdefault(m, []).append((experiment.problem.task.context, float(np.mean((ours - direct) ** 2))))
                if m == SHOWN and experiment in shown:
                    index = shown.index(experiment)
                    label = f"$N = {experiment.problem.task.context}$"
                    scatter.plot(direct[:400], ours[:400], ".", color=style.color(index), markersize=3, label=label)
        spectrum = next(iter(experiments.values())).problem.regression.spectrum
        for m, points in errors.items():
            n, error = np.array(points).T
            slope = np.polyfit(np.log(n[n >= 64]), np.log(error[n >= 64]), 1)[0] if (n >= 64).sum() > 1 else np.nan
            law.loglog(
                n,
                error,
                "o",
                color=style.color(m - 1),
                markersize=7 - m,
                fillstyle="none",
                markeredgewidth=1.3,
                label=f"plateau {m}: slope {slope:.2f}",
            )
            law.loglog(n, [leading_error(spectrum, m, context) for context in n], **panels.DASHED)
        _labels(scatter, law)
    return figure


def _labels(scatter, law) -> None:
    span = scatter.get_xlim()
    scatter.plot(span, span, color="0.6", linewidth=0.7, zorder=0)
    scatter.set_xlabel("principal component regression, 2 components")
    scatter.set_ylabel("attention at plateau 2")
    scatter.legend(loc="upper left")
    panels.title(scatter, "a", "predictions on held-out prompts")
    law.set_xlabel("context length $N$")
    law.set_ylabel("mean squared difference")
    law.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1024"])
    law.minorticks_off()
    law.legend(loc="lower left")
    panels.title(law, "b", "the difference falls as $1/N$")


def predictions(experiment: Experiment, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions at plateau m and by direct regression, on the same held-out prompts."""
    at = plateau_weights(experiment.rungs["population"].run(0), m)
    model = simulate.SeparateAttention.from_weights(at, "float64")
    prompts = held_out(experiment.problem)
    both = jax.jit(jax.vmap(lambda prompt: jnp.stack([model.predict(prompt), principal_components(prompt, m)])))(prompts)
    return np.asarray(both[:, 0]), np.asarray(both[:, 1])
