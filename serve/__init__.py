"""Engines in, predictions out. Nothing here reaches torch, transformers or train."""
