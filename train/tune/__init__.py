"""The search of settings by `pipe tune`."""
