"""Three roads to one training step, timed side by side: `python benchmarks/training.py [SEQUENCES]`.

Prints the time of an epoch of full-batch descent through the attention layer, through Gram matrices and through moments, interleaved, and
their ratios to the attention layer with the spread over repetitions. Compilation and the one pass over the data are timed apart.
"""

import sys
import time
from dataclasses import replace

import numpy as np

import spectral_ode as so

REPEATS = 3
EPOCHS = {"attention": 20, "gram": 2000, "moments": 20_000}


def main(sequences: int) -> None:
    so.configure()
    import simulate

    base = so.load("zhang2025-fig3")
    times: dict[str, list[float]] = {method: [] for method in EPOCHS}
    for _ in range(REPEATS + 1):  # the first round compiles
        for method, epochs in EPOCHS.items():
            training = replace(base.training, method=method, sequences=sequences, sampling="iid")
            short, long = (replace(base, runs=1, points=2, horizon=n * training.learning_rate, training=training) for n in (1, epochs + 1))
            laps = []
            for problem in (short, long):
                begun = time.perf_counter()
                simulate.train(problem)["loss"].block_until_ready()
                laps.append(time.perf_counter() - begun)
            times[method].append((laps[1] - laps[0]) / epochs)
    per = {method: np.array(values[1:]) for method, values in times.items()}
    print(f"{sequences} sequences, D = 4, N = 31, H = 4, {base.training.dtype}")
    for method, values in per.items():
        ratio = per["attention"] / values
        spread = f"{ratio.min():.0f} to {ratio.max():.0f}"
        print(f"{method:>10}: {1e6 * np.median(values):10.1f} us per epoch, {np.median(ratio):8.0f} times as fast as the layer ({spread})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
