# Each target sets up what it needs: a virtual environment in .venv, with the versions that were tested.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --disable-pip-version-check -q

.PHONY: demo test check results clean

demo: .venv/ready-run
	.venv/bin/python -m benchmarks.demo

test: .venv/ready-dev
	.venv/bin/pytest

check: .venv/ready-dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(MAKE) test

results: .venv/ready-run
	.venv/bin/python -m benchmarks.readme

.venv/ready-run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt -e '.[cpu,train,export,bench]'
	touch $@

.venv/ready-dev: .venv/ready-run
	$(PIP) install -c constraints.txt -e '.[cpu,train,export,bench,tensorrt-rtx,triton,dev]'
	touch $@

clean:
	rm -rf .venv runs
