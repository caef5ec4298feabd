"""Checks of the data files before training."""
