"""The compare command: a loss curve from any program over the theory of a problem.

The curve's own start is not known, so the theory is shown for the problem's starts (`--runs` of them): plateau losses do not depend on
the start, drop times do. Like `run` it is the top of the program inside its lowest package.
"""

import json
import sys
from pathlib import Path
from typing import Any

from spectral_ode import curve as curves
from spectral_ode import document
from spectral_ode.folder import whole
from spectral_ode.problem import Problem
from spectral_ode.run import Terminal


def carry_out(name: str, problem: Problem, path: str, out: str, *, column: str | None, step: float | None, talk: bool) -> dict[str, Any]:
    """Overlay one curve with the theory into a folder of its own, and return the report."""
    steps, loss = curves.read(path, column, step)
    progress = Terminal(talk and sys.stderr.isatty())
    progress.stage(f"{name}: theory")
    from figures import compared, style
    from validate import compare, perform

    try:
        time = problem.eta * steps
        experiment = perform(compare.stretched(problem, float(time[-1])), progress, train=False)
        report = compare.summarize(experiment, time, loss)
        folder = Path(out) / f"compare-{Path(path).stem}-{document.identity(problem)}"
        report |= {"file": Path(path).name, "problem": document.to_dict(problem), "folder": str(folder)}
        with whole(folder) as aside:
            style.save(compared.draw(experiment, time, loss, Path(path).name), aside / "overlay.png")
            (aside / "problem.toml").write_text(document.to_toml(problem), encoding="utf-8")
            (aside / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    finally:
        progress.close()
    if talk:
        print(compare.table(report))
    return report
