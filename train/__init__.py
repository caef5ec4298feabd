"""Rows in, run folder out: fine-tuning, and training from scratch."""

import os

# Set before torch is loaded, which reads it then. Threads that spin while they wait starve each
# other where the cores are shared, and small models, which wait often, lose most of their speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
