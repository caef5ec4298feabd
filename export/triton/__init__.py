"""Writes Triton model repositories."""
