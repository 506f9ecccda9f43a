# The commands of this repository. Plain `make` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export UV_CONSTRAINT := $(CURDIR)/requirements.lock
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.tools/bin:$(PATH)

NODES ?= 2
PROFILE ?= dgx-h100
KUBE ?= 1.36
T ?=

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: lock
lock: .tools/ready ## pin the development environment again (requirements.lock)
	scripts/lock.sh

.tools/ready: requirements.tools.lock
	@echo "▸ tools: hatch and uv"
	@test -x .tools/bin/python || python3 -m venv .tools
	@.tools/bin/pip install --quiet --disable-pip-version-check -r requirements.tools.lock
	@touch $@

.venv/ready: .tools/ready requirements.lock pyproject.toml $(wildcard packages/*/pyproject.toml e2e/*/pyproject.toml)
	@echo "▸ environment: .venv"
	@rm -rf .venv
	@.tools/bin/hatch env create
	@touch $@
