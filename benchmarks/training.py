"""Three roads to one training step: through the attention layer, through Gram matrices, and through moments.

An epoch of full-batch descent on 5,000 sequences of `zhang2025-fig3` (D = 4, N = 31, H = 4, float64), from the difference of a long and a
short training; compilation and the one pass over the data cancel. The other side is our own attention layer.
"""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.measure import Options, Row, clock, in_turns

EPOCHS = {"attention": 20, "gram": 2000, "moments": 20_000}


def run(options: Options) -> Iterator[Row]:
    import simulate
    import spectral_ode as so

    base, sequences = so.load("zhang2025-fig3"), 100 if options.small else 5000

    def epoch(method: str) -> float:
        training = replace(base.training, method=method, sequences=sequences, sampling="iid")
        problem = lambda count: replace(base, runs=1, points=2, horizon=count * training.learning_rate, training=training)
        train = lambda count: clock(lambda: simulate.train(problem(count))["loss"].block_until_ready())[0]
        return (train(EPOCHS[method] + 1) - train(1)) / EPOCHS[method]

    timers = {method: lambda method=method: epoch(method) for method in EPOCHS}
    in_turns(1, **timers)  # compiles
    took = in_turns(min(options.rounds, 3), **timers)
    for method in ("gram", "moments"):
        yield Row(f"epoch of {sequences} sequences by {method}", took[method], "attention layer", took["attention"])
