# Names people remember; the logic lives in xtask/.

XTASK := cargo xtask

.DEFAULT_GOAL := help
.PHONY: help setup demo test check test-long bench conformance test-vm install

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install the Debian packages that are missing (nothing, the second time)
	@$(XTASK) setup

demo: setup ## Start a daemon under ./.demo, ask it who it is, stop it
	@$(XTASK) demo

test: setup ## Everything CI runs
	@$(XTASK) test

check: ## The fast part of it: format, lints, dependency rules, unit tests
	@$(XTASK) check

test-long: setup ## Tests with the random and long loops at full length
	@$(XTASK) test-long

conformance: setup ## The conformance suite of CRI (critest); ARGS="--websocket" and the like
	@$(XTASK) conformance $(ARGS)

test-vm: setup ## Tests in a machine with cgroup v2, systemd, AppArmor; ARGS="--test spec" …
	@$(XTASK) test-vm $(ARGS)

install: ## Build as it ships and install it; PREFIX=/usr/local, DESTDIR= for packages
	@$(XTASK) install

bench: ## All benchmarks
	@$(XTASK) bench
