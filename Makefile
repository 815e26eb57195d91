# Every target sets itself up; PYTHON=… chooses the interpreter for the virtual environment.
MESSAGES ?= 20000
VENV := .venv/bin
# Collecting all tests takes as long as some of them: the slow ones are looked for where there are any.
SLOW_FILES = $(shell grep -rl 'mark\.slow' tests --include='test_*.py')
export PYTHON
# pytest rewrites the asserts of every test file. Each process would do that again at each start (14 s) if it could not keep the result.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow verify soak sim exhaust bench bench-parts lint proto lock clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## three nodes, 20,000 flights, a killed leader, a Spark audit (MESSAGES=20000)
	@bash deploy/setup-venv.sh demo
	@$(VENV)/python -m examples.flights --messages $(MESSAGES)

test: ## the fast tests
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pytest -q -n 3 --dist worksteal -m "not slow and not soak and not verify"

test-slow: ## real processes, the official Python client, Spark: what needs quiet, then three at a time
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pytest -q --durations 10 -m "slow and quiet and not verify and not soak" $(SLOW_FILES)
	@$(VENV)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations 40 \
		-m "slow and not quiet and not verify and not soak" $(SLOW_FILES)

verify: test test-slow ## the long check: also containers, other clients, RocketMQ's own classes, standalone Spark, half an hour of seeds, and all of exhaust
	@$(VENV)/python -m pytest -q -n 2 --durations 20 -m "verify and not slow and not soak"
	@$(VENV)/python -m pytest -q --durations 40 -m "verify and slow and not soak" $(SLOW_FILES)
	@$(VENV)/python -m bench.sim_soak --for 1800 --from-commit
	@$(VENV)/python -m tests.audit.exhaust --pieces .exhaust

soak: ## everything that waits for more than a minute; by hand, results go to docs/track-record.md
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pytest -q -m soak --timeout 3600

sim: ## four minutes of simulated clusters, from a seed that is derived from the commit
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m bench.sim_soak --for 240 --from-commit

exhaust: ## every byte of a small cluster, altered at every level of consistency, before the auditor (more than an hour)
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m tests.audit.exhaust --pieces .exhaust

bench: ## limits of this machine, native streams and peers: one JSON, one page (QUICK=1: a few minutes)
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m bench.suite $(if $(QUICK),--quick)
	@$(VENV)/python -m bench.suite --publish

bench-parts: ## every other benchmark by itself; results as JSON under bench/results/
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m bench

lint: ## style, strict types, architecture rules
	@bash deploy/setup-venv.sh dev
	@$(VENV)/ruff check .
	@$(VENV)/mypy -p ledgermq
	@$(VENV)/python -m pytest -q tests/test_tidy.py

proto: ## regenerate the code of proto/*.proto
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src src/ledgermq/proto/*.proto

lock: ## rewrite requirements/*.txt (needs uv in .venv)
	@bash deploy/lock.sh

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/ledgermq.egg-info
