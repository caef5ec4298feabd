"""Finds the first layer that differs when an engine is refused."""
