# Two images: `--target node` for nodes and the command line, `--target spark` with Spark and a Java besides, for audits on a Spark cluster.
# Builds with the legacy builder too: no BuildKit features. `make native` before the build puts ledgermq-native into both.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE} AS base
ENV DEBIAN_FRONTEND=noninteractive PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Certificate authorities of the place where the image is built; empty in the repository.
COPY deploy/certs/ /usr/local/share/ca-certificates/
RUN (command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' && command -v update-ca-certificates >/dev/null) \
    || (apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates && rm -rf /var/lib/apt/lists/*)
RUN update-ca-certificates && useradd --system --uid 10001 --home-dir /data ledgermq \
    && mkdir -p /data /run/ledgermq && chown ledgermq /data /run/ledgermq
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PATH=/opt/venv/bin:$PATH

# The environment is made here and copied whole, so the images hold neither pip nor the sources. pip compiles what it installs: the user
# ledgermq may write nothing there, and each process would otherwise compile the whole package at its start.
FROM base AS packages
WORKDIR /build
COPY requirements/node.txt requirements/
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --quiet --require-hashes -r requirements/node.txt
COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md ./
COPY deploy/package.md deploy/
COPY proto/ proto/
COPY raft/ raft/
COPY storage/ storage/
COPY node/ node/
COPY client/ client/
COPY audit/ audit/
COPY sim/ sim/
COPY src/ src/
# The pattern matches nothing without `make native`.
COPY LICENSE dist/native/*.whl wheels/
RUN /opt/venv/bin/pip install --quiet --no-deps --no-build-isolation . \
    && for wheel in wheels/*.whl; do if [ -e "$wheel" ]; then /opt/venv/bin/pip install --quiet --no-deps --no-index "$wheel"; fi; done

# The tests that numpy brings along are 20 MB.
FROM packages AS node-packages
RUN find /opt/venv/lib -type d -name tests -prune -exec rm -r {} + && /opt/venv/bin/pip uninstall --quiet --yes setuptools pip

FROM base AS node
LABEL org.opencontainers.image.title="LedgerMQ" \
    org.opencontainers.image.description="A node of LedgerMQ, a replicated message log and queue for clients of RocketMQ 5; also its command line" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="0.2.0"
COPY --from=node-packages /opt/venv /opt/venv
COPY deploy/*.yaml /etc/ledgermq/
COPY deploy/entrypoint.sh /usr/local/bin/ledgermq-entrypoint
USER ledgermq
VOLUME ["/data", "/run/ledgermq"]
# For clients, other nodes, the controller quorum, and HTTP, of nodes n1 to n3 in the configurations of the image.
EXPOSE 8081-8083 9081-9083 10081-10083 11081-11083
# READY_URL is for nodes with another HTTP port.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=12 \
    CMD python3 -c 'import os, urllib.request as r; r.urlopen(os.environ.get("READY_URL") or "http://127.0.0.1:1108" + os.environ["LEDGERMQ_NODE"][1:] + "/readyz")'
ENTRYPOINT ["ledgermq-entrypoint"]
CMD ["serve", "--config", "/etc/ledgermq/node.yaml"]

# After the node: the legacy builder builds every stage before its target.
FROM packages AS spark-packages
COPY requirements/spark.txt requirements/
RUN /opt/venv/bin/pip install --quiet --require-hashes -r requirements/spark.txt && /opt/venv/bin/pip uninstall --quiet --yes setuptools pip

FROM base AS spark
LABEL org.opencontainers.image.title="LedgerMQ with Spark" \
    org.opencontainers.image.description="Audits of LedgerMQ replicas on a Spark cluster: master, worker and driver" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="0.2.0"
COPY --from=spark-packages /opt/venv /opt/venv
COPY deploy/entrypoint.sh /usr/local/bin/ledgermq-entrypoint
USER ledgermq
VOLUME ["/data"]
EXPOSE 7077
ENTRYPOINT ["ledgermq-entrypoint"]
CMD ["audit", "--volumes"]
