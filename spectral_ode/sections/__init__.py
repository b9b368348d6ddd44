"""The sections of a problem, by the paper whose data and models they describe. Nothing here imports jax."""
