"""A recorded run and its replay: the curves on top of each other, and their difference below."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import style
from simulate.recording import Recording
from validate.replay import Curves, Judgement, distance


def draw(recording: Recording, curves: Curves, judgement: Judgement, bound: float) -> Figure:
    """Recorded wide and pale, replayed thin and dashed."""
    epochs = np.arange(recording.epochs)
    with plt.style.context(style.STYLE):
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(style.FULL, 4.4), sharex=True, height_ratios=(1.6, 1))
        for index, (name, recorded) in enumerate(recording.curves.items()):
            top.plot(epochs, recorded, color=style.pale(index), label=f"{name}, recorded", linewidth=5, solid_capstyle="round")
            top.plot(epochs, curves[name], label=f"{name}, replayed", color=style.INK, linewidth=0.9, linestyle=(0, (4, 2)))
        floor = 1e-9  # differences below this are drawn at it
        bottom.plot(epochs, np.clip(distance(recording.curves, curves), floor, 1e3), color=style.color(0), linewidth=1)
        bottom.axhline(bound, color="0.5", linewidth=0.8, linestyle=":")
        bottom.annotate(
            f"bound {bound:g}", (1, bound), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points", va="center"
        )
        word = {True: "the same run", False: "not the same run", None: "rounding decides: no verdict"}[judgement.ok]
        top.set_title(f"{recording.name}: {word}", loc="left")
        top.set_ylabel("loss")
        numbers = np.concatenate([curve[np.isfinite(curve)] for curve in [*recording.curves.values(), *curves.values()]])
        starts = [float(curve[0]) for curve in curves.values() if np.isfinite(curve[0])]
        top.set_ylim(0, min(1.5 * max(starts, default=1.0), 1.05 * np.max(numbers, initial=1e-9)))
        top.set_xlim(0, max(recording.epochs - 1, 1))
        top.legend(loc="best", ncols=len(recording.curves))
        bottom.set_yscale("log")
        bottom.set_ylabel("largest difference")
        bottom.set_xlabel(f"epoch (learning rate {recording.lr:g})")
    return figure
