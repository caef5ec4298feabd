"""The settings of a run, one class for each section of the config."""
