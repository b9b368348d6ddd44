"""Files from elsewhere, read without trust: what a file claims to hold is checked before any memory is given to it. No jax here.

An npz is a zip of npy members. Nothing is extracted, unpickled or executed; a member is read only if it is a plain array whose header
declares exactly the bytes that the zip's directory declares, and only if all members together stay within the limits below.
"""

import io
import math
import os
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

from spectral_ode.problem import BadInput

LIMIT = 4 * 2**30  # bytes of one file's arrays: more than any result or recording has, less than a machine that trains has
MODEST = 2**28  # bytes that any small file may expand to ...
RATIO = 100  # ... and beyond them so many times its size: numbers hardly compress, a bomb does a thousandfold
PIECE = 2**20  # bytes of one read; also bounds the zip's directory, thus the number of members to some ten thousands
TEXT = 2**26  # bytes of a text file: a million rows of a curve
PLAIN = "biufcSUMm"  # kinds of arrays that hold no objects and no fields
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# What numpy, zipfile and zlib are known to raise on damaged or hostile bytes.
DAMAGE = (OSError, ValueError, TypeError, LookupError, EOFError, AttributeError, RuntimeError, MemoryError, SyntaxError, struct.error)
DAMAGE += (OverflowError, zlib.error, zipfile.BadZipFile)


class _Pieces(io.BufferedReader):
    """A file that gives out at most one piece at a time, whatever size a hostile zip's directory asks for."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(PIECE if size is None or not 0 <= size <= PIECE else size)


def arrays(path: str | os.PathLike, otherwise: str) -> dict[str, np.ndarray]:
    """All arrays of an npz by name; a file that is none, or was damaged, is a `BadInput` with the sentence `otherwise`."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise OSError  # a folder, a pipe or a device
        with _Pieces(io.FileIO(path)) as raw, zipfile.ZipFile(raw) as file:
            return _members(path, file, os.fstat(raw.fileno()).st_size)
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except DAMAGE:
        raise BadInput(otherwise) from None


def text(path: str | os.PathLike, most: int = TEXT) -> str:
    """A text file in UTF-8, with or without a mark of it; a device without end, or too long a file, is a `BadInput`."""
    content = bytearray()
    with open(path, "rb") as raw:
        while piece := raw.read(PIECE):
            content += piece
            if len(content) > most:
                raise BadInput(f"{path} is longer than {most:.3g} bytes, which is more than is read; give a shorter file")
    return content.decode("utf-8-sig")


def acceptable(name: str) -> str:
    """The name of an array, unless it is no name but a path out of its folder, or cannot be printed."""
    parts = name.split("/")
    if not (name.isprintable() and 0 < len(name) <= 1000) or "\\" in name or ".." in parts or (parts[0] == "" and len(parts) > 1):
        raise ValueError(f"{name!r:.200} cannot be the name of an array in a file")
    return name


def _members(path: str | os.PathLike, file: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    members = file.infolist()
    names = [acceptable(member.filename.removesuffix(".npy")) for member in members]
    if len(set(names)) < len(names) or not all(member.filename.endswith(".npy") for member in members):
        raise ValueError
    declared, most = sum(member.file_size for member in members), min(LIMIT, max(MODEST, RATIO * size))
    if declared > most:
        given = f"{path} declares {declared:.3g} bytes of arrays in a file of {size:.3g}"
        raise BadInput(f"{given}, but at most {most:.3g} are read; save fewer arrays, or without compression")
    return {name: _array(file, member) for name, member in zip(names, members, strict=True)}


def _array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with file.open(member) as raw, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers that numpy reads, but would write differently today
        shape, fortran, dtype = HEADERS[np.lib.format.read_magic(raw)](raw)
        size = math.prod(shape) * dtype.itemsize
        if dtype.kind not in PLAIN or min(shape, default=0) < 0 or dtype.itemsize == 0 or size != member.file_size - raw.tell():
            raise ValueError
        content = bytearray(size)  # the first memory that depends on what the file says, which is checked by now
        for begin in range(0, size, PIECE):
            content[begin : begin + PIECE] = raw.read(min(PIECE, size - begin))
        if len(content) != size:
            raise EOFError
    return np.ndarray(shape, dtype, content, order="F" if fortran else "C")
