#!/usr/bin/env bash
# Builds or checks ledgermq-native, the optional compiled package: native.sh build|check
# `build` installs the wheel into .venv and leaves a copy in dist/native/, from where images take it.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo >/dev/null 2>&1 || {
  echo "error: ledgermq-native is built with cargo, and there is no cargo on this machine; install Rust 1.85 or newer, or use LedgerMQ without it" >&2
  exit 1
}
bash deploy/setup-venv.sh dev
# The tools of the wheel, or of the checks: cargo reads everything else from native/Cargo.lock.
tools() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "requirements/$1.txt"; }

build() {
  tools native
  rm -rf dist/native
  .venv/bin/maturin build --release --locked --quiet --manifest-path native/Cargo.toml --interpreter .venv/bin/python --out dist/native
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall dist/native/*.whl
  env -u LEDGERMQ_PURE .venv/bin/python -c 'import sys; from ledgermq.proto import kernels; print("in .venv:", kernels.described()); sys.exit(not kernels.NATIVE)'
}

check() {
  tools native-check
  export PYO3_PYTHON=$PWD/.venv/bin/python
  LD_LIBRARY_PATH=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  cd native
  cargo fetch --locked --quiet
  cargo fmt --check
  cargo clippy --locked --quiet --all-targets -- -D warnings
  # The database of advisories is a git repository, which this check does not fetch: `cargo deny check advisories` needs a network that has it.
  PATH=$PWD/../.venv/bin:$PATH cargo deny --offline --locked check licenses bans sources
  cargo test --locked --quiet
  cd ..
  .venv/bin/python -m tests.native.fuzz --for 30
}

case "${1:-}" in
  build | check) "$1" ;;
  *) echo "usage: native.sh build|check" >&2; exit 64 ;;
esac
