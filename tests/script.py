"""The authors' PyTorch script once more, from its description alone: data sets, starts and recorded curves for the tests of the replay."""

import jax
import jax.numpy as jnp
import numpy as np


def forward(weights: dict, x, *, heads: int, softmax: bool, vary_len: bool):
    """Outputs of all tokens; x is (sequences, tokens, e), and a weight is rows of length e, heads stacked along them."""
    B, T, _ = x.shape
    cut = lambda name: jnp.moveaxis((x @ weights[name].T).reshape(B, T, heads, -1), 2, 1)  # (B, heads, T, rows of a head)
    asking, asked = (x[:, None], cut("kq")) if "kq" in weights else (cut("query"), cut("key"))
    scores = asking @ jnp.swapaxes(asked, 2, 3)
    if softmax:
        scores = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
        scores = scores / jnp.sum(scores, axis=-1, keepdims=True)
    out = jnp.sum(scores @ cut("value"), axis=1)
    return out / T if vary_len else out


def error(weights: dict, x, y, **settings):
    """Mean squared error of the query's label, over all contexts of the sequences when the length varies."""

    def of_length(tokens: int):
        asked = x[:, :tokens].at[:, -1, -1].set(0)
        return jnp.mean((forward(weights, asked, **settings)[:, -1, -1] - y[:, tokens - 1, -1]) ** 2)

    lengths = range(2, x.shape[1] + 1) if settings["vary_len"] else [x.shape[1]]
    return sum(of_length(tokens) for tokens in lengths) / len(lengths)


def data_set(rng: np.random.Generator, sequences: int, tokens: int, d: int, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens with labels, the query's label hidden in the first array; `shared`: labels are noise, and all queries have one task."""
    x = rng.normal(size=(sequences, tokens, d)) * np.sqrt(np.arange(1, d + 1) / np.sum(np.arange(1, d + 1)))
    labels = np.einsum("std,sd->st", x, rng.normal(size=(sequences, d)))
    if shared:
        labels = rng.normal(size=(sequences, tokens))
        labels[:, -1] = x[:, -1] @ np.ones(d)
    y = np.concatenate([x, labels[:, :, None]], axis=2)
    hidden = y.copy()
    hidden[:, -1, -1] = 0
    return hidden, y


def record(
    *,
    model: str = "attnM",
    softmax: bool = False,
    vary_len: bool = False,
    heads: int = 2,
    rank: int = 1,
    tests: bool = False,
    epochs: int = 60,
    lr: float = 0.01,
    scale: float = 0.3,
    dtype: str = "float64",
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """A recorded run as the arrays of its npz: every block of the start is filled, also those that the paper starts at zero."""
    rng = np.random.default_rng(seed)
    d, tokens = 2, 6
    x, y = data_set(rng, 30, tokens, d, shared=False)
    rows = {"value": heads * (d + 1)} | ({"kq": heads * (d + 1)} if model == "attnM" else dict.fromkeys(("key", "query"), heads * rank))
    start = {name: scale * rng.normal(size=(count, d + 1)) for name, count in rows.items()}
    arrays = {"lr": lr, "epochs": epochs, "heads": heads, "rank": rank, "in_dim": d, "seq_len": tokens, "model": model}
    arrays |= {"softmax": softmax, "vary_len": vary_len, "data_x": x, "data_y": y}
    arrays |= {f"init_{name}": part for name, part in start.items()}
    sets = {"loss": (x, y)}
    if tests:
        for short, name, shared in (("iwl", "loss_in_weight_test", True), ("icl", "loss_in_context_test", False)):
            sets[name] = arrays[f"data_x_{short}"], arrays[f"data_y_{short}"] = data_set(rng, 20, tokens, d, shared)
    settings = {"heads": heads, "softmax": softmax, "vary_len": vary_len}
    typed = {name: tuple(jnp.asarray(part, dtype) for part in pair) for name, pair in sets.items()}
    full = lambda weights, x, y: jnp.mean((forward(weights, x, **settings)[:, -1, -1] - y[:, -1, -1]) ** 2)

    @jax.jit
    def train(weights):
        def epoch(weights, _):
            loss, slope = jax.value_and_grad(lambda weights: error(weights, *typed["loss"], **settings))(weights)
            seen = {"loss": loss} | {name: full(weights, *pair) for name, pair in typed.items() if name != "loss"}
            return jax.tree.map(lambda part, by: part - jnp.asarray(lr, dtype) * by, weights, slope), seen

        return jax.lax.scan(epoch, weights, None, length=epochs)

    _, curves = train({name: jnp.asarray(part, dtype) for name, part in start.items()})
    return {name: np.asarray(value) for name, value in (arrays | curves).items()}
