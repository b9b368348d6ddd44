"""Recipes of npz files, most of them damaged or made to harm: plain data that can be printed, drawn at random and made into bytes."""

import contextlib
import io
import json
import struct
import warnings
import zipfile
from typing import Any

import numpy as np

from spectral_ode.trajectory import FORMAT

RAN: list[str] = []  # filled if a pickle is ever run
NAMES = ("time", "header", "observable/loss", "observable/λ 1/2", "phase/half 1", "loss", "epoch", "lr", "model", "heads", "data_x")
EVIL = ("../../evil", "/etc/evil", "observable/../../../evil", "a\\b", "c:evil", "\n", "", "x" * 2000, "\x1b[2J", "con", "λ\ud800")
SHAPES = (
    (),
    (0,),
    (2,),
    (4,),
    (3, 2),
    (0, 10**18),
    (10**12,),
    (2**62,),
    (2**32, 2**32),
    (-1,),
    (-4, -2),
    (1,) * 70,
    (10**5000,),
    (True,),
    ("4",),
)
TYPES = (
    "<f8",
    "<f4",
    "<i8",
    "|b1",
    "<U3",
    "|S4",
    "<U0",
    "|V0",
    "|V8",
    "|O",
    "<c16",
    "<M8[D]",
    ">f8",
    "f8,f8",
    "(1000000,)f8",
    "<f16",
    "λ",
    "<U99999999",
)
HEADERS = (
    {"format": FORMAT, "clock": "flow time", "provenance": {}},
    {"format": FORMAT, "clock": "flow time", "provenance": {"ok": "yes", "stopped": 3, "runs": [{}]}},
    {"format": FORMAT, "clock": {"a": []}, "provenance": []},
    {"format": FORMAT, "clock": "a\nb", "provenance": {"runs": "none"}},
    {"format": "2\nthis is a second line", "clock": "", "provenance": {}},
    {"format": 10**30, "clock": "flow time"},
    [],
    "text",
)


class Trap:
    """An object that says so when it is unpickled."""

    def __reduce__(self) -> tuple:
        return _run, ("a pickle was run",)


def _run(text: str) -> str:
    RAN.append(text)
    return text


def _npy(descr: str, shape: tuple, content: bytes, version: int = 1, fortran: bool = False) -> bytes:
    """An npy member with any header whatsoever."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {hex_shape(shape)}, }}".encode("utf-8", "surrogatepass") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + content


def hex_shape(shape: tuple) -> str:
    """A shape as text; long integers have no decimal one."""
    shown = [hex(entry) if type(entry) is int and abs(entry) > 10**20 else repr(entry) for entry in shape]
    return f"({', '.join(shown)}{',' if len(shown) == 1 else ''})"


def zipped(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip with these members; names may be repeated, or be none."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name twice
        for name, content in members:
            with contextlib.suppress(UnicodeEncodeError):  # a name that no zip can have
                entry = zipfile.ZipInfo(name)
                entry.compress_type = method
                file.writestr(entry, content)
    return raw.getvalue()


def declaring(content: bytes, size: int) -> bytes:
    """The same zip, its directory declaring so many bytes for every member."""
    where, changed = content.find(b"PK\x01\x02"), bytearray(content)
    while where >= 0:
        changed[where + 24 : where + 28] = struct.pack("<I", size)
        where = content.find(b"PK\x01\x02", where + 1)
    return bytes(changed)


def _member(kind: str, *about: Any) -> bytes:
    """One member by its recipe."""
    if kind == "bytes":
        return about[0]
    if kind == "claim":
        return _npy(*about)
    raw = io.BytesIO()
    if kind == "pickle":
        np.save(raw, np.array([Trap()], dtype=object), allow_pickle=True)
    else:
        np.save(raw, np.array(json.dumps(HEADERS[about[0]])) if kind == "header" else np.zeros(*about), allow_pickle=False)
    return raw.getvalue()


def made(recipe: dict[str, Any]) -> bytes:
    """The bytes of a recipe: members, how they are packed, and the damage done to the whole."""
    content = zipped([(name, _member(*member)) for name, member in recipe["members"]], recipe["method"])
    for kind, place, what in recipe["damage"]:
        at = int(place * len(content))
        if kind == "cut":
            content = content[:at]
        elif kind == "declare":
            content = declaring(content, what)
        else:
            content = content[:at] + what + content[at + (len(what) if kind == "replace" else 0) :]
    return content


def recipes() -> Any:
    """A strategy of npz files: first a whole trajectory or curve, then members of any kind, then damage."""
    from hypothesis import strategies as st

    good = st.sampled_from(NAMES)
    bad = st.one_of(st.sampled_from(EVIL), st.text(max_size=8))
    names = st.tuples(st.one_of(good, good, good, good, bad), st.sampled_from([".npy"] * 7 + [""])).map("".join)
    shapes = st.sampled_from(SHAPES)
    claims = st.tuples(
        st.just("claim"), st.sampled_from(TYPES), shapes, st.binary(max_size=64), st.sampled_from([1, 2, 3, 9]), st.booleans()
    )
    plain = st.tuples(
        st.just("array"),
        st.sampled_from(SHAPES[:5]),
        st.sampled_from(["f8", "f4", "i8", "?", "U3", "c16", "M8[D]", ">f8", ">i4", "u8", "g"]),
    )
    headers = st.tuples(st.just("header"), st.integers(0, len(HEADERS) - 1))
    members = st.one_of(plain, plain, claims, headers, st.just(("pickle",)), st.tuples(st.just("bytes"), st.binary(max_size=64)))
    begin = st.one_of(
        st.tuples(headers, st.sampled_from([(4,), (2, 4), (1,), (0,), (2, 0)]), st.sampled_from(["f8", "f8", "f4", ">f8", "g"])).map(
            lambda it: [("header.npy", it[0]), *((name, ("array", it[1], it[2])) for name in ("time.npy", "observable/loss.npy"))]
        ),
        st.just([("loss.npy", ("array", (4,), "f8"))]),
        st.just([]),
    )
    damage = st.one_of(
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(b"")),
        st.tuples(st.just("declare"), st.just(0.0), st.sampled_from([0, 1, 200, 2**28 + 1, 2**32 - 1])),
        st.tuples(st.sampled_from(["insert", "replace"]), st.floats(0, 1), st.binary(min_size=1, max_size=20)),
    )
    return st.fixed_dictionaries(
        {
            "members": st.tuples(begin, st.lists(st.tuples(names, members), max_size=3)).map(lambda it: [*it[0], *it[1]]),
            "method": st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]),
            "damage": st.lists(damage, max_size=2),
        }
    )
