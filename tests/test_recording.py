"""Recorded runs as files: what is read is what was recorded, and every malformed file is one sentence that names the array."""

import io

import numpy as np
import pytest
from close import assert_close
from script import record

from simulate import recording as recordings
from spectral_ode import BadInput, cli

SEQUENCES, TOKENS, E, HEADS, EPOCHS = 30, 6, 3, 2, 5


@pytest.fixture(scope="module")
def arrays():
    return record(tests=True, epochs=EPOCHS)


@pytest.fixture(scope="module")
def separate():
    return record(model="attnS", rank=2, epochs=EPOCHS)


def _npz(arrays: dict, *, pickled: bool = False) -> bytes:
    raw = io.BytesIO()
    np.savez(raw, allow_pickle=pickled, **arrays)
    return raw.getvalue()


def _without(arrays, name):
    return {key: value for key, value in arrays.items() if key != name}


def _put(array, index, value):
    changed = np.array(array)
    changed[index] = value
    return changed


def test_what_is_read_is_what_was_recorded(arrays, separate, tmp_path):
    (tmp_path / "some.run.npz").write_bytes(_npz(arrays))
    read = recordings.load(tmp_path / "some.run.npz")
    assert (read.name, read.kind, read.softmax, read.vary_len, read.heads, read.rank) == ("some.run", "merged", False, False, HEADS, 1)
    assert (read.lr, read.epochs) == (0.01, EPOCHS)
    assert list(read.curves) == list(read.data) == ["training", "in-weight", "in-context"]
    assert_close(read.curves["in-weight"], arrays["loss_in_weight_test"], rtol=0, atol=0)
    assert_close(read.data["in-context"][0], arrays["data_x_icl"], rtol=0, atol=0)
    assert set(read.start) == {"value", "kq"}
    (tmp_path / "run.npz").write_bytes(_npz(separate))
    again = recordings.load(tmp_path / "run.npz")
    assert (again.kind, again.rank, set(again.start), list(again.curves)) == ("separate", 2, {"value", "key", "query"}, ["training"])


def test_single_precision_and_whole_numbers_are_read_as_numbers(arrays, tmp_path):
    changed = arrays | {"data_x": arrays["data_x"].astype(np.float32), "lr": np.array(1), "epochs": np.array(float(EPOCHS))}
    (tmp_path / "run.npz").write_bytes(_npz(changed))
    read = recordings.load(tmp_path / "run.npz")
    assert (read.lr, read.epochs, read.data["training"][0].dtype) == (1.0, EPOCHS, np.float64)


MISSING = {
    "loss": f"an array of shape ({EPOCHS},)",
    "data_x": f"an array of shape (sequences, {TOKENS}, {E})",
    "data_y": f"an array of shape ({SEQUENCES}, {TOKENS}, {E})",
    "data_x_iwl": f"an array of shape (sequences, {TOKENS}, {E})",
    "data_y_icl": f"an array of shape (20, {TOKENS}, {E})",
    "init_value": f"an array of shape ({HEADS * E}, {E})",
    "init_kq": f"an array of shape ({HEADS * E}, {E})",
} | dict.fromkeys(("lr", "epochs", "heads", "rank", "in_dim", "seq_len", "model", "softmax", "vary_len"), "a single value")
CHANGED = {
    "wrong shape of data": ("data_x", lambda a: a[:, :-1], "data_x has shape (30, 5, 3)", "(sequences, 6, 3) are expected"),
    "no sequences": ("data_x", lambda a: a[:0], "data_x has shape (0, 6, 3)", "(sequences, 6, 3) are expected"),
    "fewer labels than data": ("data_y", lambda a: a[:-1], "data_y has shape (29, 6, 3)", "(30, 6, 3) are expected"),
    "flat data": ("data_x", lambda a: a.ravel(), "data_x has shape (540,)", "(sequences, 6, 3) are expected"),
    "wrong shape of start": ("init_kq", lambda a: a.T, "init_kq has shape (3, 6)", "(6, 3) are expected"),
    "start of another number of heads": ("init_value", lambda a: a[:3], "init_value has shape (3, 3)", "(6, 3) are expected"),
    "test of another width": ("data_x_icl", lambda a: a[..., 1:], "data_x_icl has shape (20, 6, 2)", "(sequences, 6, 3) are expected"),
    "test curve of another length": ("loss_in_weight_test", lambda a: a[1:], "loss_in_weight_test has shape (4,)", "(5,) are expected"),
    "text for an array": ("data_x", lambda a: a.astype(str), "data_x has shape (30, 6, 3), type <U", "numbers of shape"),
    "text for a loss": ("loss", lambda a: a.astype(str), "loss has shape (5,), type <U", "numbers of shape (5,)"),
    "complex data": ("data_x", lambda a: a + 0j, "type complex128", "numbers of shape"),
    "text for a number": ("lr", lambda a: np.array("fast"), "lr has shape () and type <U4", "a single float is expected"),
    "number for text": ("model", lambda a: np.array(3), "model has shape () and type int64", "a single str is expected"),
    "list for a number": ("heads", lambda a: np.array([2]), "heads has shape (1,)", "a single int is expected"),
    "nan for a number": ("lr", lambda a: np.array(np.nan), "lr is nan", "a positive float is expected"),
    "negative rate": ("lr", lambda a: -a, "lr is -0.01", "a positive float is expected"),
    "infinite rate": ("lr", lambda a: np.array(np.inf), "lr is inf", "a positive float is expected"),
    "zero heads": ("heads", lambda a: np.array(0), "heads is 0", "a positive int is expected"),
    "half a head": ("heads", lambda a: np.array(2.5), "heads is 2.5", "a positive int is expected"),
    "zero rank": ("rank", lambda a: np.array(0), "rank is 0", "a positive int is expected"),
    "no tokens": ("seq_len", lambda a: np.array(1), "seq_len is 1", "at least one context token and the query"),
    "unknown model": ("model", lambda a: np.array("mlp"), "model is 'mlp'", "it must be one of attnM, attnS, attnFull"),
    "epochs beyond the loss": ("epochs", lambda a: np.array(6), "loss has shape (5,)", "(6,) are expected"),
    "epochs short of the loss": ("epochs", lambda a: np.array(4), "loss has shape (5,)", "(4,) are expected"),
    "nan in the data": ("data_x", lambda a: _put(a, (3, 2, 1), np.nan), "data_x holds an entry that is not a number", "finite"),
    "infinity in the labels": ("data_y", lambda a: _put(a, (3, 2, 1), np.inf), "data_y holds an entry that is not a number", "finite"),
    "nan in the start": ("init_kq", lambda a: _put(a, (0, 0), np.nan), "init_kq holds an entry that is not a number", "finite"),
    "label in the query": (
        "data_x",
        lambda a: _put(a, (7, -1, -1), 0.5),
        "data_x has a label in its last token",
        "data_x[:, -1, -1] must be 0",
    ),
    "label in a test's query": ("data_x_iwl", lambda a: _put(a, (7, -1, -1), 0.5), "data_x_iwl has a label", "must be 0"),
}


def _refused(folder, capsys, content: bytes, *parts: str) -> None:
    """By the function and by the command: one sentence with these parts, exit 2, nothing written."""
    (folder / "run.npz").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        recordings.load("run.npz")
    told = str(caught.value)
    assert told.startswith("run.npz")
    assert "\n" not in told
    for part in parts:
        assert part in told
    assert cli.main(["replay", "run.npz", "--json"]) == 2
    assert capsys.readouterr() == ("", f"spectral_ode: {told}\n")
    assert [path.name for path in folder.iterdir()] == ["run.npz"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "wanted"), MISSING.items(), ids=MISSING)
def test_a_missing_array_is_named_with_the_shape_expected(arrays, folder, capsys, name, wanted):
    _refused(folder, capsys, _npz(_without(arrays, name)), f"has no array {name}; {wanted} is expected")


@pytest.mark.parametrize("name", ["init_key", "init_query"])
def test_a_missing_key_or_query_too(separate, folder, capsys, name):
    _refused(folder, capsys, _npz(_without(separate, name)), f"has no array {name}; an array of shape (4, 3) is expected")


@pytest.mark.parametrize(("name", "change", "given", "expected"), CHANGED.values(), ids=CHANGED)
def test_a_wrong_array_is_named_with_what_is_expected(arrays, folder, capsys, name, change, given, expected):
    _refused(folder, capsys, _npz(arrays | {name: change(arrays[name])}), given, expected)


def test_what_is_no_npz_of_plain_arrays_is_told(arrays, folder, capsys):
    whole = _npz(arrays)
    single = io.BytesIO()
    np.save(single, arrays["loss"])
    objects = _npz(arrays | {"loss": np.array([1.0, None], object)}, pickled=True)
    inside = whole.index(b"data_x.npy") + 300
    flipped = whole[:inside] + bytes(255 - byte for byte in whole[inside : inside + 40]) + whole[inside + 40 :]
    for content in (whole[: len(whole) // 2], whole[:-30], single.getvalue(), objects, b"", b"epoch,loss\n0,1\n", b"PK\x03\x04", flipped):
        _refused(folder, capsys, content, "is not an npz file of plain arrays, or it was cut short")


@pytest.mark.parametrize(
    "value", [np.array(b"0.1"), np.array(1 + 0j), np.array("2020-01-01", "datetime64[D]")], ids=["bytes", "complex", "date"]
)
def test_a_scalar_of_another_type_is_refused(arrays, folder, capsys, value):
    _refused(folder, capsys, _npz(arrays | {"lr": value}), "lr has", "a single float is expected")


@pytest.mark.parametrize("value", [np.array(b"False"), np.array(np.nan), np.array(0.3)], ids=["bytes", "nan", "0.3"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(arrays, folder, capsys, value):
    _refused(folder, capsys, _npz(arrays | {"softmax": value}), "softmax", "is expected")
