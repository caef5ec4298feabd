"""The commands of `pipe`; heavy imports are inside the functions, so that help is fast."""
