"""Rows in, run folder out: fine-tuning, and training from scratch."""
