"""Comparisons with other trainers and servers, measured on one machine in one run."""
