"""Modules of figures for the tests of the gallery."""

import json

from small import SMALL

from spectral_ode import document

PROBLEM = document.override(SMALL, {"horizon": 400.0, "points": 40, "training.sequences": 200})
GOOD = '''"""A good <figure> & more."""

from matplotlib import pyplot as plt

from figures import style
from drawn import PROBLEM

PAPER = "arXiv:2501.16265, ours"
SECONDS = (1, 1)
CAPTION = "What was <computed> & drawn."


def problems(fast):
    return {"a problem": PROBLEM}


def draw(experiments, width=style.FULL):
    with plt.style.context(style.STYLE):
        figure, (axes,) = style.grid(width, 1, 1, height=2)
        axes.plot(experiments["a problem"].rungs["training"]["loss"][0])
    return figure
'''


def listed(folder):
    return {record["name"]: record for record in json.loads((folder / "index.json").read_text())["figures"]}
