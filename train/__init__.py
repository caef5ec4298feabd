"""Fine-tuning, training from scratch and pretraining: from data files to a run folder."""

import os

# torch reads these variables when it is imported, so they are set here.
# Spinning OpenMP threads compete for shared cores; small models wait often and become very slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# oneDNN caches 1,024 kernels by default, and each batch length has its own. 128 are as fast and
# save 180 MB for a MiniLM after 120 steps.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
# The gradient of an embedding table is as large as the table and is allocated in each step. With
# transparent huge pages (2 MiB instead of 4 KiB) a step of MiniLM takes 9 % less time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# The process number of the command that started this process to share its work.
LAUNCHER = "PIPEWORK_LAUNCHER"
