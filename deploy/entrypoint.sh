#!/bin/sh
# Starts `ledgermq`, or with `spark-master` and `spark-worker` a part of a Spark cluster, in a container. The first node to come mints what makes the nodes one cluster (id, birth time, secret) into the volume they
# share; the others read it. On several machines set LEDGERMQ_CLUSTER__ID, …__CREATED_MS and …__SECRET yourself instead.
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
    # A hard link is made by one node only, whoever is first; the others keep what is there.
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
