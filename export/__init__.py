"""Run folder in, proven engines out. A file is named as the arrow it is."""
