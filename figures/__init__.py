"""Figures: one module each, drawn by a pure function of trajectories, in one style."""
