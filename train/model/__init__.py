"""Encoders, heads and checkpoints."""
