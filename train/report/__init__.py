"""Run log, baseline, plots and the report of a finished run."""
