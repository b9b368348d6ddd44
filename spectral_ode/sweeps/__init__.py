"""Sweeps: one problem over grids and samples of its fields and over seeds, integrated in groups, streamed to disk, resumable."""
