#!/usr/bin/env bash
# Rewrites requirements/*.txt from pyproject.toml and requirements/*.in: every version pinned, every file hashed, no index address inside.
# The smaller sets are constrained by dev.txt, so that all have the same versions. UV names the uv to use; without it, .venv must have one.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
  "${UV:-.venv/bin/uv}" pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-header --quiet "$@"
}
nodes=(pyproject.toml --extra server --group build)
compile "${nodes[@]}" --extra console --extra audit --extra iceberg --extra spark --extra otlp --extra tiered --group demo --group dev -o requirements/dev.txt
compile "${nodes[@]}" --extra console --extra audit --extra spark --group demo -c requirements/dev.txt -o requirements/demo.txt
compile "${nodes[@]}" --extra audit --extra spark --extra tiered -c requirements/dev.txt -o requirements/spark.txt
compile "${nodes[@]}" --extra console --extra otlp --extra tiered -c requirements/dev.txt -o requirements/node.txt
compile requirements/native.in -o requirements/native.txt
compile requirements/native-check.in -o requirements/native-check.txt
compile requirements/proto.in -o requirements/proto.txt
