"""Rows in, run folder out: fine-tuning, and training from scratch."""

import os

# Set before torch is loaded, which reads it then. Threads that spin while they wait starve each
# other where the cores are shared, and small models, which wait often, lose most of their speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The same for oneDNN, which keeps the kernels of 1,024 products. Each length of a batch has its
# own: without them a MiniLM had 180 MB less after 120 steps. With 128 training is as fast.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
# The gradient of a table of embeddings is as large as the table, and new in each step: its pages
# come from the system anew, 4 KiB at a time. In pages of 2 MiB the backward pass of a table of
# 2**20 x 64 took 23 ms instead of 119, a step of MiniLM 9 % less, and its memory was the same.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
