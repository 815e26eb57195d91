#!/bin/sh
# Starts `ledgermq` in a container, or with `spark-master` and `spark-worker` a part of a Spark cluster. The first node to start generates the
# cluster's id, creation time and secret, and stores them in the volume that the nodes share; the others read them. For nodes on several
# machines, set LEDGERMQ_CLUSTER__ID, …__CREATED_MS and …__SECRET instead.
set -eu
umask 027
shared=/run/ledgermq/cluster.env
if [ "${1:-}" = serve ] && [ -z "${LEDGERMQ_CLUSTER__ID:-}" ]; then
  if [ ! -s "$shared" ]; then
    draft=$(mktemp /run/ledgermq/draft.XXXXXX)
    python3 - >"$draft" <<'MINT'
import secrets, time, uuid
print(f"LEDGERMQ_CLUSTER__ID={uuid.uuid4()}")
print(f"LEDGERMQ_CLUSTER__CREATED_MS={time.time_ns() // 1_000_000}")
print(f"LEDGERMQ_CLUSTER__SECRET={secrets.token_hex(32)}")
MINT
    # Only the first node can create the hard link; the others use the existing file.
    ln "$draft" "$shared" 2>/dev/null || true
    rm -f "$draft"
  fi
  set -a
  . "$shared"
  set +a
fi
case "${1:-}" in
  spark-master | spark-worker)
    role=${1#spark-}
    shift
    exec python3 -m ledgermq.audit.spark.standalone "$role" "$@"
    ;;
esac
exec ledgermq "$@"
