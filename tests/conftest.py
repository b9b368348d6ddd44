"""Every test runs in float64, with strict dtype promotion and no silent broadcasting of ranks."""

import os
import sys

os.environ["EQX_ON_ERROR"] = "nan"  # as the entry points do

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from small import of_system

from spectral_ode import runtime, systems

runtime.configure()  # compiled programs are kept on disk: a second run of the tests is much faster


@pytest.fixture(params=systems.names())
def system(request):
    """Every system there is, on its small problem: a new file is covered on arrival."""
    problem = of_system(request.param)
    return systems.load(request.param).from_problem(problem), problem


@pytest.fixture(scope="module", autouse=True)
def forget():
    """Drop the compiled programs of a file: all together they need more memory maps than Linux gives a process, which then crashes."""
    yield
    jax.clear_caches()


@pytest.fixture
def more(tmp_path, monkeypatch):
    """A second folder of figure modules."""
    import figures

    folder = tmp_path / "more"
    folder.mkdir()
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(folder)])
    yield folder
    for path in folder.glob("*.py"):
        sys.modules.pop(f"figures.{path.stem}", None)
        vars(figures).pop(path.stem, None)
