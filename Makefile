# SPDX-License-Identifier: Apache-2.0
# The commands of this repository. Plain `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export UV_CONSTRAINT := $(CURDIR)/requirements.lock
# Tests start hundreds of Python programs: with byte code each is there after a third of the time.
export UV_COMPILE_BYTECODE := 1
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.tools/bin:$(PATH)

NODES ?= 2
PROFILE ?=
KUBE ?= 1.36
T ?=
PEER ?=
SOAK ?=
# Of `make component`: all of its files, or these.
FILES ?=
# Of `make fuzz`: for all targets together, and of the cases: a new one each time, which is printed.
SECONDS ?= 60
SEED ?=
TARGET ?=
# Programs and servers are shared by the tests of a file: a random order tells little and costs time.
IN_ORDER := -p no:randomly --durations=12 --durations-min=10
# Tests wait more than they work: on two cores, four files at a time. More would now and then be too slow for a test.
AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder
# Those that take longest come first, so that none is left alone at the end. pytest drops a file from its
# arguments when a directory that holds it is there as well, so all are files.
LONGEST := $(addprefix packages/nvdra-gpu-plugin/tests/component/test_,\
  crash_campaign.py dynamic_mig.py nvml_failures.py health_taints.py random_histories.py) \
  $(addsuffix /tests/component/test_crash_campaign.py,\
  packages/nvdra-cd-controller packages/nvdra-imex-daemon)
# A kube-apiserver starts with half the work if it has one core and collects garbage late.
FRUGAL := GOMAXPROCS=1 GOGC=400
# They load NVML into the process of the test, where nothing else may have done so.
OWN_PROCESS := $(patsubst %,packages/nvdra-gpu-plugin/tests/component/test_%.py,device_monitor gpu_drain session_pause vfio_binding)
COMPONENT_TESTS = $(LONGEST) $(filter-out $(LONGEST) $(OWN_PROCESS),$(shell find \
  packages/*/tests/component e2e/*/tests/component e2e/sim/tests/kernel charts/tests tests/component -name 'test_*.py' | sort))

# What component and chart tests run; the other programs of a cluster are for the end-to-end tests.
SERVERS := kube-apiserver kube-controller-manager kubectl etcd helm nvidia-ctk nvidia-cdi-hook

.PHONY: help
help: ## list the commands
	@echo "nvdra: a Kubernetes DRA driver for NVIDIA GPUs"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'
	@echo "Variables: NODES=$(NODES) PROFILE=$(PROFILE) (dgx-h100; the demo: gb200-nvl72) KUBE=$(KUBE), and for e2e T= (selects tests), RUNTIME= (cri-o, containerd-1.7)"

.PHONY: demo
demo: setup ## a cluster of two nodes, the driver by helm, pods that hold simulated GPUs, a ComputeDomain (root)
	@python -m e2e.demo --nodes $(NODES) $(PROFILE:%=--profile %) --kube $(KUBE)

.PHONY: rack
rack: setup ## a rack of 18 nodes, one ComputeDomain over all of them, what to try with it (root)
	@python -m e2e.demo.rack --kube $(KUBE)

.PHONY: test
test: setup ## everything: check, component tests, end to end (root)
	@setsid nice -n 19 scripts/ahead.sh $(SERVERS) & ahead=$$!; trap "kill -- -$$ahead 2> /dev/null || true" EXIT; \
	$(MAKE) check component; \
	$(MAKE) fuzz SEED=$(or $(SEED),1); \
	wait $$ahead || true; trap - EXIT; \
	$(MAKE) e2e
	@echo "✓ all tests passed"

.PHONY: check
check: .venv/ready ## format, lint, types, layers, unit tests of the Python packages; under a minute
	@hatch run check

.PHONY: component
component: setup ## components against a real API server and the simulated GPU; the charts' tests
	@echo "▸ component tests"
	@lab binaries $(SERVERS)
	@$(FRUGAL) pytest $(IN_ORDER) $(AT_ONCE) $(SOAK) $(or $(FILES),$(COMPONENT_TESTS))
	@$(if $(FILES),,$(FRUGAL) pytest $(IN_ORDER) $(SOAK) $(OWN_PROCESS))

.PHONY: fuzz
fuzz: setup ## generated and mutated bytes for whatever reads those of others, SECONDS=60 together; SEED=7: those cases again; TARGET=name
	@lab binaries $(SERVERS)
	@$(FRUGAL) python -m nvdra_testing.fuzzing --seconds=$(SECONDS) $(SEED:%=--seed=%) $(TARGET:%=--target=%)

.PHONY: e2e
e2e: setup ## end to end on a real cluster (root); T=words selects tests, PEER=archive the reference's image
	@echo "▸ end to end: groups side by side, each on a cluster of its own, then the lab itself"
	@lab binaries
	@lab image build
	@python scripts/end_to_end.py $(GROUPS:%=--group=%) --kube=$(KUBE) $(RUNTIME:%=--runtime=%) --nodes=$(NODES) $(ADDRESSES:%=--pod-addresses=%) $(if $(filter --soak,$(SOAK)),--soak -rP --week-report=$(CURDIR)/out/week-of-a-node) $(PEER:%=--peer=%) $(if $(T),-k "$(T)")

.PHONY: soak
soak: setup ## what takes hours, by parts; only what has changed since it passed. STATUS=1: a table; KUBE=1.34: that release
	@python -m tests.soak $(if $(STATUS),--status) $(if $(AGAIN),--again) $(if $(filter command line,$(origin KUBE)),--kube=$(KUBE))

soak-%: setup
	@python -m tests.soak $(if $(STATUS),--status) $(if $(AGAIN),--again) $*

.PHONY: steady
steady: setup ## tests that end a process or were red three to ten times, every file once, of others a sample, on a busy machine, some 8 h; MINUTES=30: a slice; STATUS=1: a table
	@$(if $(STATUS),,lab binaries && lab image build)
	@python -m tests.steady $(if $(STATUS),--status) $(if $(MINUTES),--minutes=$(MINUTES)) $(AGAIN:%=--again=%) $(T)

.PHONY: bench
bench: setup ## measure prepare, unprepare, start-up, memory, pods and compute domains; writes bench/RESULTS.md
	@lab binaries
	@command -v wrk > /dev/null || { echo "▸ Debian package: wrk"; apt-get install -y -qq wrk > /dev/null; }
	@python -m bench

.PHONY: try
try: setup ## this tree's COMPONENT=gpu-plugin in a lab: its image built, loaded and rolled out; starts a lab if none is up (root)
	@lab binaries > /dev/null
	@scripts/try.sh $(COMPONENT)

.PHONY: cluster
cluster: setup ## start a cluster without the driver (NODES=, PROFILE=, KUBE=); root
	@lab up --nodes $(NODES) $(PROFILE:%=--profile %) --kube $(KUBE)

.PHONY: cluster-down
cluster-down: .venv/ready ## stop the cluster; leaves nothing but the build cache
	@lab down

.PHONY: images
images: setup ## build the container images (OCI archives in the build cache)
	@lab image build

.PHONY: wheels
wheels: .venv/ready ## build every package's wheel into dist/
	@rm -rf dist && mkdir dist
	@for package in packages/*/; do (cd "$$package" && hatch --quiet build -t wheel "$(CURDIR)/dist"); done
	@ls dist

.PHONY: release-check
release-check: setup ## build every wheel, image and chart into out/release, rehearse a release, say what is wrong (root)
	@lab binaries helm nvidia-cdi-hook > /dev/null
	@python -m scripts.release_check

.PHONY: docs
docs: .venv/ready ## build the documentation site into out/site; generated pages are made anew before
	@python scripts/document_reasons.py
	@python -m scripts.document_configuration
	@python -m scripts.document_versions
	@python charts/complete_packages.py
	@python charts/document_values.py
	@UV_CONSTRAINT=$(CURDIR)/requirements.docs.lock hatch run docs:build
	@echo "✓ out/site; to look at it: python3 -m http.server --directory out/site"

.PHONY: lock
lock: .tools/ready ## pin the development environment again (requirements.lock, requirements.docs.lock)
	@scripts/lock.sh

.PHONY: clean
clean: ## remove what was built in the tree (the build cache stays)
	@rm -rf .venv .venv-docs .tools dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: setup
setup: .venv/ready
	@scripts/bootstrap.sh

.tools/ready: requirements.tools.lock
	@echo "▸ tools: hatch and uv (about 10 s)"
	@python3 -c 'import ensurepip' || { echo "error: python3 makes no environments: apt-get install -y python3-venv" >&2; exit 1; }
	@test -x .tools/bin/python || python3 -m venv .tools
	@.tools/bin/pip install --quiet --disable-pip-version-check -r requirements.tools.lock
	@touch $@

.venv/ready: .tools/ready requirements.lock pyproject.toml $(wildcard packages/*/pyproject.toml e2e/*/pyproject.toml testing/pyproject.toml)
	@echo "▸ environment: .venv (about 10 s)"
	@hatch env create
	@touch $@
