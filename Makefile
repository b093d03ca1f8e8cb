# make demo    install, then in two minutes: transform, train, compare, time, simulate, and a page of charts
# make test    install, then run the tests that take a few minutes in total
# make test-all    run the longer tests too: documents, sanitizers, other compilers, whole architectures
# make reproduce    repeat figures and tables of the paper on Fashion-MNIST, within 90 minutes; DATA=DIR has its IDX files
# make ci      run what continuous integration runs
# make docs    build the documents as a site in build/site
#
# PYTHON=python3.12 make test    with another interpreter (before .venv exists)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALLING := Installing into $(CURDIR)/$(VENV): downloads torch and other packages, then compiles kernels, for some minutes.
INSTALL_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard backends/cpu/kernels/*/* backends/cpu/kernels/*/*/*)

.PHONY: demo test test-all lint types walls package-check fuzz docs reproduce ci clean
.DELETE_ON_ERROR:

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Byte code is made at the first import: of all modules at once it takes half a minute and more, of those in use seconds.
$(VENV)/demo.stamp: $(INSTALL_INPUTS) | $(VENV)/bin/python
	@echo "$(INSTALLING)"
	$(PIP) install --no-compile -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/dev.stamp: $(INSTALL_INPUTS) | $(VENV)/bin/python
	@echo "$(INSTALLING)"
	$(PIP) install --no-compile -c constraints.txt -e '.[demo,dev,docs]'
	@touch $@ $(VENV)/demo.stamp

# FOLDER=somewhere make demo puts its files elsewhere.
demo: $(VENV)/demo.stamp
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONDONTWRITEBYTECODE= docs/demo/demo.sh "$(or $(FOLDER),build/demo)"

# One torch thread in each of the two workers: more would only wait for each other. Tests of a file share a worker, and
# with it what they are all made of; tests/conftest.py orders the files. Byte code is kept, even where the environment
# asks for none: the tests start many processes, and each would compile this package again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/dev.stamp
	$(PYTEST)

test-all: test
	$(PYTEST) -m slow

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(wildcard backends/cpu/kernels/*/*.* backends/cpu/kernels/*/*/*.* tests/backends/cpu/native/*)

# mypy does not see through the editable install's mapping of folders to packages: it reads a copy that is laid out as
# wheels are, with the type stub that the build made.
types: $(VENV)/dev.stamp
	rm -rf build/plain
	mkdir -p build/plain
	cp -r sift_onnx build/plain
	cp -r passes backends models build/plain/sift_onnx
	cp $(VENV)/lib/python*/site-packages/sift_onnx/backends/cpu/_kernels.pyi build/plain/sift_onnx/backends/cpu
	cd build/plain && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p sift_onnx

walls: $(VENV)/dev.stamp
	$(BIN)/pytest tests/test_import_walls.py

# A wheel, made of the sdist, in a fresh environment without torch; PYTHONS="python3.10 python3.13" for others as well.
package-check: $(VENV)/dev.stamp
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist .
	$(BIN)/python tests/packaging/check_install.py build/dist --python "$(CURDIR)/$(BIN)/python" $(addprefix --python ,$(PYTHONS))

# FILES=1000 make fuzz for less
fuzz: $(VENV)/dev.stamp
	PYTHONPATH=tests:tests/support OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --files $(or $(FILES),20000) --jobs 2

# The documents as a site in build/site, with a reference of verbs and of Python; a broken link is an error.
docs: $(VENV)/dev.stamp
	$(BIN)/python docs/site/lay_out.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file build/mkdocs.yml

# Tables and figures of the paper, to benchmarks/reproduce/results/standard; within 90 minutes on two cores.
reproduce: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reproduce/run.py --fresh $(if $(DATA),--data $(DATA))

# The tests have those of the walls.
ci: lint types test-all

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis
