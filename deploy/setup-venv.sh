#!/usr/bin/env bash
# Creates .venv from a locked requirements file: setup-venv.sh demo|dev
# A stamp file with the hash of the lock file makes a second run a no-op. Never uses sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
set_name=${1:?usage: setup-venv.sh demo|dev}
lock=requirements/$set_name.txt
stamp=.venv/stamp-$set_name

fail() { echo "error: $1" >&2; exit 1; }
[ "$(uname -s)" = Linux ] || fail "LedgerMQ runs on Linux only; use the containers (docker compose up) on other systems"

# Compile the sources now: processes that must not write compiled files (PYTHONDONTWRITEBYTECODE) would otherwise compile the whole package at
# each start, which is a third of a node's start time. A failure, as in a read-only tree, is ignored.
compile_sources() { .venv/bin/python -m compileall -q src audit bench client node proto raft sim storage tests examples >/dev/null 2>&1 || true; }

usable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
pick_python() {
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
    if usable "$candidate"; then echo "$candidate"; return; fi
  done
  fail "no Python >= 3.11 found; install one, or choose one: make PYTHON=/path/to/python3 …"
}

make_venv() {
  local python=$1
  if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then "$python" -m venv .venv; return; fi
  if "$python" -c 'import virtualenv' >/dev/null 2>&1; then "$python" -m virtualenv --quiet .venv; return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then "$python" -m venv .venv; return; fi
  fi
  fail "this Python cannot create virtual environments; Debian/Ubuntu: apt install python3-venv"
}

wanted=$(sha256sum "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
for have in .venv/stamp-dev "$stamp"; do
  # dev contains everything in demo; each stamp is the hash of its own lock file
  name=${have##*-}
  if [ -f "$have" ] && [ "$(cat "$have")" = "$(sha256sum "requirements/$name.txt" pyproject.toml | sha256sum | cut -d' ' -f1)" ] \
      && .venv/bin/python -c 'import ledgermq' >/dev/null 2>&1; then compile_sources; exit 0; fi
done

python=$(pick_python)
.venv/bin/python -c 'import pip' >/dev/null 2>&1 || { rm -rf .venv; make_venv "$python"; }
echo "installing $lock into .venv (once; Spark alone is 450 MB) …" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
compile_sources
echo "$wanted" > "$stamp"
