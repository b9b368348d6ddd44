"""Devices, hosts and pieces: however a batch is dealt out, it is the same batch and the same training.

Tolerances. From two devices on their number does not change a bit. One device runs a program that XLA compiles otherwise (it fuses other
operations, which then round once instead of twice), and pieces of another size are other partial sums: both change the last digits of
the training's float type, by less than 2e-6 of the largest entry after these few steps in float32 and 1e-9 in float64 (measured: 2e-7 and
2e-10).
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dealt import FOUR, PROBLEMS
from small import SMALL

import simulate
from simulate.cost import fit, pieces
from simulate.mesh import Deal
from simulate.normals import NORMALS
from spectral_ode import Trajectory, cli, document
from spectral_ode.problem import BadInput

TESTS = Path(__file__).parent
BOUNDS = {"float32": 2e-6, "float64": 1e-9}


def _difference(one: Trajectory, two: Trajectory) -> float:
    """The largest difference of any observable, in units of its largest entry; standard errors are differences themselves."""
    apart = lambda a, b: float(np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(b), initial=0.0), 1e-300))
    names = [name for name in two.observables if name not in ("standard error", "heads", "spread", "zeros", "outside", "idle")]
    return max(apart(np.asarray(one[name], float), np.asarray(two[name], float)) for name in names)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One small problem of each kind on 1 and 2 devices (some on 4), and on two processes with two devices each."""
    folder, port = tmp_path_factory.mktemp("dealt"), str(_port())
    program = [sys.executable, str(TESTS / "dealt.py"), str(folder)]
    alone = subprocess.run(program, env=_environment(), capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    both = [subprocess.Popen([*program, port, number], env=_environment(), stderr=subprocess.PIPE, text=True) for number in "01"]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return lambda name, how: folder / f"{name}-{how}.npz"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_number_of_devices_and_processes_changes_nothing(name, trained):
    two = trained(name, 2)
    assert name not in FOUR or trained(name, 4).read_bytes() == two.read_bytes()
    assert trained(name, "processes").read_bytes() == two.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_device_agrees_but_for_rounding(name, trained):
    one, two = (Trajectory.load(trained(name, count)) for count in (1, 2))
    assert _difference(one, two) <= (0.0 if name == "moments" else BOUNDS[PROBLEMS[name][0].training.dtype])


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "moments"])
def test_a_microbatch_changes_nothing_but_rounding(name):
    problem, microbatch = PROBLEMS[name]
    cut, whole = simulate.train(problem, microbatch=microbatch), simulate.train(problem)
    assert pieces(problem, Deal(microbatch))[1] < pieces(problem, Deal())[1]
    assert _difference(cut, whole) <= BOUNDS[problem.training.dtype]
    assert cut.provenance["microbatch"] == microbatch


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_rows_of_normals_are_those_of_jax(dtype):
    key = jax.random.key(5)
    whole = jax.random.normal(key, (40, 3, 7), dtype)
    for first in (0, 11):
        assert np.array_equal(NORMALS["threefry"](key, (9, 3, 7), dtype, first), whole[first : first + 9])


def test_rows_of_box_muller_need_no_others():
    key = jax.random.key(5)
    box_muller = NORMALS["box-muller"]
    assert np.array_equal(box_muller(key, (9, 5, 2), jnp.float32, 11), box_muller(key, (40, 5, 2))[11:20])


def test_pieces_fill_blocks_or_divide_them():
    size = lambda microbatch, count: Deal(microbatch).size(count, 200, 200)
    assert [size(microbatch, 1000) for microbatch in (None, 1, 30, 199, 200, 500, 5000)] == [200, 1, 25, 100, 200, 400, 1000]
    assert [size(microbatch, 128) for microbatch in (None, 30, 500)] == [128, 30, 128]


def test_a_bound_of_memory_is_kept_and_what_cannot_fit_is_told():
    problem, _ = PROBLEMS["episodes"]
    largest = simulate.cost(problem)
    assert largest.microbatch == largest.batch == problem.training.contexts
    bound = largest.fixed + largest.temporary // 2
    chosen = fit(problem, bound)
    assert chosen is not None
    assert chosen < largest.microbatch
    assert simulate.cost(problem, microbatch=chosen).memory <= bound
    assert simulate.train(problem, memory=bound).provenance["microbatch"] == chosen
    with pytest.raises(BadInput, match="--memory is 1000 bytes"):
        fit(problem, 1000)
    assert fit(PROBLEMS["moments"][0], 1000) is None  # it has no batch to cut


def test_the_last_weights_give_their_memory_to_the_next_ones():
    cost = simulate.cost(PROBLEMS["episodes"][0])
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(simulate.episode_training.build(PROBLEMS["episodes"][0])[1]))
    assert cost.donated >= weights
    assert cost.operations > 0


WRONG = {
    "memory-and-microbatch": (["--memory", "1G", "--microbatch", "4"], "leave one of them out"),
    "memory": (["--memory", "much"], "--memory is 'much', but it must be a number of bytes"),
    "microbatch": (["--microbatch", "0"], "--microbatch is '0', but it must be a whole number of at least 1"),
    "save-every": (["--save-every", "often"], "--save-every is 'often'"),
    "no-processes": (["--coordinator", "here:1234", "--process", "0"], "give --processes too"),
    "no-coordinator": (["--processes", "2"], "give --coordinator and --process too"),
    "process-too-large": (["--coordinator", "here:1234", "--processes", "2", "--process", "2"], "numbered from 0 to 1"),
    "no-port": (["--coordinator", "here", "--processes", "2", "--process", "0"], "it must be HOST:PORT"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_flags_are_told_in_one_sentence(name, capsys, tmp_path):
    words, sentence = WRONG[name]
    assert cli.main(["run", "one-drop", "--out", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def _run(*words: str) -> subprocess.Popen:
    program = [sys.executable, "-m", "spectral_ode", "run", *words]
    return subprocess.Popen(program, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--distributed"], "found no SLURM, Open MPI or cloud environment"),
        (["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "1", "--timeout", "1"], ""),
        (["--coordinator", "127.0.0.1:PORT", "--processes", "2", "--process", "0", "--timeout", "2"], "process 1 of --processes 2 did not"),
    ],
    ids=["no cluster", "nobody listens", "nobody comes"],
)
def test_processes_that_do_not_meet_are_told(words, sentence, tmp_path):
    process = _run("one-drop", "--out", str(tmp_path), *(word.replace("PORT", str(_port())) for word in words))
    output, errors = process.communicate()
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    assert sentence in errors
    assert not output


@pytest.mark.slow
def test_two_processes_run_as_one_and_the_first_alone_writes_and_prints(tmp_path):
    (tmp_path / "small.toml").write_text(document.to_toml(replace(SMALL, horizon=20.0, points=20)))
    words = [str(tmp_path / "small.toml"), "--json", "--coordinator", f"127.0.0.1:{_port()}", "--processes", "2"]
    both = [_run(*words, "--process", number, "--out", str(tmp_path / number)) for number in "01"]
    (output, errors), (silence, _) = (process.communicate() for process in both)
    assert both[0].returncode == both[1].returncode, errors
    assert both[0].returncode in (0, 1), errors
    assert json.loads(output)["folder"].startswith(str(tmp_path / "0"))
    assert silence == ""
    assert not (tmp_path / "1").exists()
    assert [path.name.startswith("linear") for path in (tmp_path / "0").iterdir()] == [True]
