"""Rows in, run folder out: fine-tuning, and training from scratch."""

import os

# Set before torch is loaded, which reads it then. Threads that spin while they wait starve each
# other where the cores are shared, and small models, which wait often, lose most of their speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The same for oneDNN, which keeps the kernels of 1,024 products. Each length of a batch has its
# own: without them a MiniLM had 180 MB less after 120 steps. With 128 training is as fast.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
