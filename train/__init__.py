"""Rows in, run folder out: fine-tuning, and training from scratch."""

import os

# Set before torch is loaded, which reads it then. Threads that spin while they wait starve each
# other where the cores are shared, and small models, which wait often, lose most of their speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The same for oneDNN, which keeps the kernels of 1,024 products. Each length of a batch has its
# own, and 300 MB of them came together in 100 steps of a MiniLM; with 128 training is as fast.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
