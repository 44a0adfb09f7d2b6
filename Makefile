# Everything runs in the environment that is active; .ci/run makes its own.

PYTHON ?= python

.PHONY: install test lint types bench ci

install:  ## planc with everything needed to work on it
	$(PYTHON) -m pip install -e '.[dev]'

test:
	OPENBLAS_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 -q

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

bench:  ## every table of tests/bench on stdout, progress on stderr; then the demo and the quickest command, timed
	for file in tests/bench/bench_*.py; do OPENBLAS_NUM_THREADS=1 $(PYTHON) $$file || exit 1; done
	time planc demo --dir "$$(mktemp -d)"
	time planc --help > /dev/null

ci:
	.ci/run
