"""Experiments that produce the stored results. Not part of the wheel."""
