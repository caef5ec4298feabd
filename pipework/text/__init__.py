"""Text to token ids, and token ids to padded or packed arrays."""
