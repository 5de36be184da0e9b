# Everything a newcomer needs: `make demo` and `make test`. Both make .venv first if it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test soak format docs docs-serve images notebooks dist bench-core bench-data clean

setup: $(READY)

# the mark is older than pyproject.toml only if the dependencies may have changed: a second call installs nothing
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "tagspread needs Python 3.11 or newer, but $(PYTHON) is %d.%d: try make PYTHON=python3.12" % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing tagspread and its tools into .venv (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	@touch $@

demo: setup
	@$(BIN)/tagspread demo --overwrite

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@# tensors in tests are tiny: more threads only wait for each other, for minutes on a busy machine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the site, offline and strict: a broken link is an error
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open it with: $(BIN)/python -m http.server --directory site"

docs-serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# the long form of tests/faults: thousands of faults and bad inputs; it continues where it was stopped
soak: setup
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.faults.campaigns.soak --processes 2 --out runs/soak

images: setup
	$(BIN)/python docs/images/make_images.py

notebooks: setup
	$(BIN)/python docs/notebooks/execute.py

# wheel and source distribution; the wheel is then tried in a fresh environment, see tools/try_wheel.py
dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/try_wheel.py dist/*.whl

bench-data: setup
	$(BIN)/python benchmarks/data.py

bench-core: setup
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf .venv site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
