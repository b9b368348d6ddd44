# Two commands for a newcomer: `make run` and `make test`. Everything lives in .venv; needs Python 3.11 or newer with pip and venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint types validate figures figures-fast benchmarks docs pictures clean

run: .venv/ready
	$(BIN)/python -m spectral_ode run

test: .venv/ready-dev
	$(BIN)/python -m pytest

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

validate: .venv/ready
	$(BIN)/python -m validate

figures: .venv/ready
	$(BIN)/python -m figures

figures-fast: .venv/ready
	$(BIN)/python -m figures --fast

benchmarks: .venv/ready-dev
	$(BIN)/python -m benchmarks

docs: .venv/ready-dev
	$(BIN)/python docs/generate.py --check
	PYTHONPATH=docs $(BIN)/zensical build --strict

pictures: figures
	@for old in docs/*.png docs/*.gif; do new=figures/out/$${old#docs/}; if [ -f $$new ]; then cp $$new $$old; fi; done

clean:
	rm -rf .venv runs figures/out site .cache

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spectral_ode needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
