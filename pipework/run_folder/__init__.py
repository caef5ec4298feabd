"""The run folder: manifest, engine records, files with digests, lock."""
