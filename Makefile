# `make demo` and `make test` need Python 3.11+ and make; everything else they install into .venv.
PYTHON ?= python3
# A host without a GPU spares itself gigabytes: make demo PIP_TORCH="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH ?=
BIN := .venv/bin
# The tests start hundreds of processes: each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-gpu check audit sbom docs benchmark clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Finery needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_TORCH) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/finery run configs/recipes/demo.yaml

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

test: ONLY := -m "not long"
test: WORKERS ?= 3
test-long: ONLY := -m "long or hypothesis or wider"
test-long: WORKERS ?= 2
# The types are checked beside the tests, which wait for a disk, a server or a browser now and then.
test test-long: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ONLY); tests=$$?; \
	wait $$types && exit $$tests

test-gpu: .venv/ready
	$(BIN)/python -m tests.gpu

audit: .venv/ready
	$(BIN)/python .ci/audit.py

sbom: .venv/ready
	mkdir -p build
	$(BIN)/cyclonedx-py environment --output-format JSON --output-reproducible --output-file build/sbom.cdx.json $(BIN)/python

docs: .venv/ready
	$(BIN)/python docs/build_reference.py

benchmark: .venv/ready
	$(BIN)/python benchmarks/performance.py

clean:
	rm -rf .venv build dist docs/reference
