# Each target sets up what it needs: a virtual environment in .venv, with the versions that were tested.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check -q
# The tests of a file share what they set up; tests/conftest.py orders the files.
PYTEST = .venv/bin/pytest -n auto --dist loadfile --no-loadscope-reorder
STUDIES = tests/benchmarks/studies
# The tests start hundreds of Python processes: each would compile the modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-others test-all lint check results tables gpu gpu-join gpu-wheels triton cluster paper-gpu clean

demo: .venv/ready-run
	.venv/bin/python -P -m pipework.benchmarks.demo

test: .venv/ready-dev
	$(PYTEST) -m "not slow and not study and not thorough and not cluster" --ignore=$(STUDIES)

# The tests that `make test` leaves out and that are not slow. AGAIN=FILE adds the tests that FILE names, one per line.
test-others: .venv/ready-dev
	$(PYTEST) -m "not slow and (study or thorough or cluster)"

test-all: .venv/ready-dev
	$(PYTEST)

lint: .venv/ready-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

check:
	$(MAKE) lint
	$(MAKE) test
	$(MAKE) test-others

results: .venv/ready-run
	.venv/bin/python -P -m pipework.benchmarks.studies.documents.readme

tables: .venv/ready-dev
	$(MAKE) -f benchmarks/studies/tables.mk tables

# On a machine with a GPU, and the packages for it from another machine: see benchmarks/README.md.
gpu:
	$(MAKE) -f benchmarks/studies/gpu.mk $@

gpu-join:
	$(MAKE) -f benchmarks/studies/gpu.mk $@

gpu-wheels: .venv/ready-run
	$(MAKE) -f benchmarks/studies/gpu.mk $@

.venv/ready-run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt -e '.[cpu,train,export,bench,bulk,tune,labels]'
	touch $@

.venv/ready-dev: .venv/ready-run
	$(PIP) install -c constraints.txt -e '.[cpu,train,export,bench,tensorrt-rtx,triton,dev]'
	touch $@

# A real tritonserver, from a wheel that carries it, and an environment of its own for its models.
triton: .triton/ready

TRITON = .triton/server/pytriton/tritonserver
TRITON_PIP = .triton/venv/bin/python -m pip --disable-pip-version-check -q
NO_TRITON = { echo "make triton: no tritonserver to be had here; it needs the package index, Linux on x86_64, glibc 2.35, Python 3.11 to 3.13" >&2; exit 1; }

.triton/ready: constraints-triton.txt | .venv/ready-dev
	rm -rf .triton
	$(PYTHON) -m venv .triton/venv
	$(TRITON_PIP) install --no-deps -c constraints-triton.txt --target .triton/server nvidia-pytriton || $(NO_TRITON)
	$(TRITON_PIP) install -c constraints-triton.txt numpy onnxruntime openvino pydantic tokenizers
	$(TRITON_PIP) install --no-deps -e .
	chmod +x $(TRITON)/bin/tritonserver
	cp $(TRITON)/python_backend_stubs/$$(.triton/venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')/triton_python_backend_stub $(TRITON)/backends/python/ || $(NO_TRITON)
	.venv/bin/python -P -m pipework.serve.triton.server
	touch $@

# An environment of their own for Ray, Spark and Dask, and for moto, a server with the protocol of S3.
cluster: .cluster/ready

.cluster/ready: pyproject.toml constraints.txt constraints-cluster.txt
	rm -rf .cluster
	$(PYTHON) -m venv .cluster/venv
	.cluster/venv/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -c constraints-cluster.txt \
		-e '.[cpu,ray,s3]' 'dask[dataframe]' 'moto[server]' pyspark 'ray[data]'
	touch $@

# ONNX Runtime for CUDA, CUDA's headers, and the bindings of TensorRT 11 and 10. Tests compile stubs of the libraries of
# CUDA and TensorRT, so that they run without a GPU.
paper-gpu: .paper-gpu/ready

.paper-gpu/ready: constraints-paper-gpu.txt | .venv/ready-dev
	rm -rf .paper-gpu
	$(PIP) install --no-deps -c constraints-paper-gpu.txt --target .paper-gpu onnxruntime-gpu nvidia-cuda-runtime nvidia-cuda-crt tensorrt-cu13-bindings
	$(PIP) install --no-deps -c constraints-paper-gpu.txt --target .paper-gpu/tensorrt-10 tensorrt-cu12-bindings
	touch $@

clean:
	rm -rf .venv .triton .cluster .paper-gpu runs
