"""One way to compare arrays, with one default tolerance; a looser one says why where it is used."""

import numpy as np


def assert_close(actual, expected, *, rtol: float = 1e-10, atol: float = 1e-13) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol)
