# Every target sets itself up; PYTHON=… chooses the interpreter for the virtual environment.
MESSAGES ?= 20000
VENV := .venv/bin
# Collecting all tests takes as long as some of them: the slow ones are looked for where there are any.
SLOW_FILES = $(shell grep -rl 'mark\.slow' tests --include='test_*.py')
# The tests of what ledgermq-native replaces, and one that bounds calls, of which there are more without it: `make test` runs them a second
# time, without it, where it is installed.
TWINS := tests/proto tests/storage tests/log_service tests/client tests/contract tests/replica/test_delivery_turn_costs.py
# `make verify` does the same with the tests of the clients' port that need real nodes: they meet the compiled gRPC server, then the other one.
BY_CLIENTS := tests/contract tests/node/frontend/test_node_worker_proxy.py tests/e2e/test_e2e_departures.py tests/e2e/test_e2e_workers.py
export PYTHON
# pytest rewrites the asserts of every test file. Each process would do that again at each start (14 s) if it could not keep the result.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow native images verify verify-weekly soak sim exhaust bench bench-parts lint proto lock clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## three nodes, 20,000 flights and 1,000 in order, a killed leader, a Spark audit (MESSAGES=20000; CONSOLE=1: pages to look at them, until Ctrl-C)
	@bash deploy/setup-venv.sh demo
	@$(VENV)/python -m examples.flights --messages $(MESSAGES) $(if $(CONSOLE),--console)

test: ## the fast tests
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pytest $(RECORD) -q -n 3 --dist worksteal -m "not slow and not soak and not verify"
	@if $(VENV)/python -c 'import ledgermq_native' 2>/dev/null; then echo "without ledgermq-native:"; \
		LEDGERMQ_PURE=1 $(VENV)/python -m pytest $(RECORD) -q -n 3 --dist worksteal -m "not slow and not soak and not verify" $(TWINS); fi

# Of the tests with real processes: what needs quiet, then three files at a time.
define slow_tests
@$(VENV)/python -m pytest $(RECORD) -q --durations 10 -m "slow and quiet and $(1) and not soak and not weekly" $(SLOW_FILES)
@$(VENV)/python -m pytest $(RECORD) -q -n 3 --dist loadfile --no-loadscope-reorder --durations 40 -m "slow and not quiet and $(1) and not soak and not weekly" $(SLOW_FILES)
endef

test-slow: ## real processes, the official Python client, Spark
	@bash deploy/setup-venv.sh dev
	$(call slow_tests,not verify)

native: ## the optional compiled package ledgermq-native: built with cargo, installed into .venv
	@bash deploy/native.sh build

images: ## container images of a node and of Spark; with ledgermq-native inside after `make native`
	docker build --target node --tag ledgermq:local $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) .
	docker build --target spark --tag ledgermq-spark:local $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) .

# Containers get what is built, so the compiled package comes first. Tests of hypothesis try six times as many examples as in `make test`.
# The commit chooses the eighth of `make exhaust`. What passed is recorded in .verify/, and a second run of the same code leaves it out.
ONCE := $(VENV)/python -m tests.verify --once
verify: export PYTEST_ADDOPTS := --hypothesis-profile=verify
verify: export RECORD := -p tests.verify
verify: ## the long check, which goes on where it ended: also containers, other clients, RocketMQ's own classes, standalone Spark, ten minutes of seeds on two cores, an eighth of exhaust
	@bash deploy/setup-venv.sh dev
	@if command -v cargo >/dev/null; then bash deploy/native.sh build && $(ONCE) native bash deploy/native.sh check; \
		else echo "no cargo: ledgermq-native is neither built nor checked"; fi
	@$(MAKE) --no-print-directory test test-slow
	@$(VENV)/python -m pytest $(RECORD) -q -n 2 --durations 20 -m "verify and not slow and not soak and not weekly"
	$(call slow_tests,verify)
	@if $(VENV)/python -c 'import ledgermq_native' 2>/dev/null; then echo "clients of nodes without ledgermq-native:"; \
		LEDGERMQ_PURE=1 $(VENV)/python -m pytest $(RECORD) -q -n 3 --dist loadfile --durations 20 -m "not soak" $(BY_CLIENTS); fi
	@$(ONCE) seeds $(VENV)/python -m bench.alone.sim_soak --for 600 --processes 2 --from-commit
	@$(ONCE) exhaust $(VENV)/python -m tests.audit.exhaust --share $$((0x$$(git rev-parse --short=7 HEAD) % 8))/8
	@$(VENV)/python -m tests.verify

verify-weekly: export PYTEST_ADDOPTS := --hypothesis-profile=verify
verify-weekly: export RECORD := -p tests.verify
verify-weekly: ## what takes turns in the long check, all of it; also an API server of Kubernetes, and the fast tests of a clone in a fresh container
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pytest $(RECORD) -q -n 2 --durations 20 -m "weekly"
	@$(VENV)/python -m tests.verify

soak: ## everything that waits for more than a minute; by hand, results go to docs/track-record.md (python -m tests.soak: docs/soak.md)
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pytest -q -m soak --timeout 3600

sim: ## four minutes of simulated clusters, from a seed that is derived from the commit
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m bench.alone.sim_soak --for 240 --from-commit

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

lint: ## format, style, strict types, architecture rules
	@bash deploy/setup-venv.sh dev
	@$(VENV)/ruff format --check --quiet .
	@$(VENV)/ruff check .
	@$(VENV)/mypy -p ledgermq -m pyspark_ledgermq
	@$(VENV)/python -m pytest -q tests/test_tidy.py

# An older generator than the one of the environment, so that users of older libraries can import its code; type stubs are better from the newer one.
proto: ## regenerate the code of proto/*.proto
	@bash deploy/setup-venv.sh dev
	@$(VENV)/python -m pip install --quiet --disable-pip-version-check --upgrade --target build/protoc --require-hashes -r requirements/proto.txt
	@PYTHONPATH=build/protoc $(VENV)/python -m grpc_tools.protoc -I src --python_out=src src/ledgermq/proto/*.proto
	@PYTHONPATH=build/protoc $(VENV)/python -m grpc_tools.protoc -I src --grpc_python_out=src $(addprefix src/ledgermq/proto/,admin.proto audit.proto log.proto)
	@$(VENV)/python -m grpc_tools.protoc -I src --pyi_out=src src/ledgermq/proto/*.proto

lock: ## rewrite requirements/*.txt (needs uv in .venv, or UV=/path/to/uv)
	@bash deploy/lock.sh

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist native/target src/ledgermq.egg-info
