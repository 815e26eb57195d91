#!/usr/bin/env bash
# Rewrites requirements/*.txt from pyproject.toml: every version pinned, every file hashed, no index address inside.
# The smaller sets are constrained by dev.txt, so that all have the same versions.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
  .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-header --quiet pyproject.toml "$@"
}
compile --extra build --extra audit --extra demo --extra tracing --extra dev -o requirements/dev.txt
compile --extra build --extra audit --extra demo -c requirements/dev.txt -o requirements/demo.txt
compile --extra build --extra audit -c requirements/dev.txt -o requirements/audit.txt
compile --extra build -c requirements/dev.txt -o requirements/service.txt
