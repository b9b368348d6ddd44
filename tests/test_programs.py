"""Compiled programs: right, and on disk whole or not there."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lru_cache import LRUCache

from spectral_ode import programs


@pytest.fixture
def cache(tmp_path):
    """As JAX makes it, after an entry point has said where programs are kept."""
    programs._written_aside()
    return LRUCache(str(tmp_path), max_size=-1)


def test_a_program_gets_its_name_when_it_is_whole(cache, tmp_path, monkeypatch):
    seen = []

    def replace(aside, path, really=os.replace):
        seen.append((os.path.getsize(aside), os.path.exists(path)))
        really(aside, path)

    monkeypatch.setattr(os, "replace", replace)
    cache.put("one", b"x" * 1000)
    cache.put("one", b"y" * 1000)  # written by another process before
    assert seen == [(1000, False)]
    assert cache.get("one") == b"x" * 1000
    assert len(list(tmp_path.iterdir())) == 1


def test_a_write_that_fails_leaves_nothing_behind(cache, tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        cache.put("one", b"x")
    assert list(tmp_path.iterdir()) == []
    assert cache.get("one") is None


def test_a_program_gives_the_numbers_that_numpy_gives():
    """XLA's older code for CPUs, `--xla_cpu_use_fusion_emitters=false`, compiles in six tenths of the time and gets these sums wrong."""

    def balances(flat):
        row, key, query = flat[:6].reshape(2, 3), flat[6:12].reshape(2, 1, 3), flat[12:].reshape(2, 1, 2)
        first = (row**2).sum(axis=1) - (key**2).sum(axis=(1, 2))
        return first, (key @ key.swapaxes(1, 2) - query @ query.swapaxes(1, 2)).reshape(-1)

    states = np.random.default_rng(0).normal(size=(5, 16))
    ours = jax.jit(jax.vmap(lambda flat: jnp.concatenate(balances(flat))))(states)
    np.testing.assert_allclose(ours, [np.concatenate(balances(state)) for state in states], atol=1e-14)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    """By JAX's own count."""
    script = """
from jax import monitoring
import spectral_ode as so
seen = []
monitoring.register_event_listener(lambda name, **_: seen.append(name.rsplit("/", 1)[-1]))
so.configure()
import jax
jax.jit(lambda x: x + 1.25)(1.0)
print(seen.count("cache_misses"), seen.count("cache_hits"))
"""
    where = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"} | {"XDG_CACHE_HOME": str(tmp_path)}
    words = [sys.executable, "-c", script]
    ask = lambda: subprocess.run(words, capture_output=True, text=True, check=True, env=where).stdout.split()
    (first, second) = ask(), ask()
    assert int(first[0]) > 0
    assert second[0] == "0"
    assert int(second[1]) > 0
