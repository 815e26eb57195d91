# One image for nodes, the command line and the audit. Builds with the legacy builder too: no BuildKit features.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

ENV DEBIAN_FRONTEND=noninteractive PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Certificate authorities of the place where the image is built; empty in the repository.
COPY deploy/certs/ /usr/local/share/ca-certificates/
RUN (command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' && command -v update-ca-certificates >/dev/null) \
    || (apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates && rm -rf /var/lib/apt/lists/*)
RUN update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt

WORKDIR /app
COPY requirements/ requirements/
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --quiet --require-hashes -r requirements/audit.txt
ENV PATH=/opt/venv/bin:$PATH

COPY pyproject.toml README.md LICENSE ./
COPY proto/ proto/
COPY raft/ raft/
COPY storage/ storage/
COPY node/ node/
COPY client/ client/
COPY audit/ audit/
COPY sim/ sim/
COPY src/ src/
COPY deploy/*.yaml /etc/ledgermq/
COPY deploy/entrypoint.sh /usr/local/bin/ledgermq-entrypoint
# Compiled here: the user below may write nothing there, and each process would compile the whole package at its start.
RUN /opt/venv/bin/pip install --quiet --no-deps --no-build-isolation --editable . \
    && /opt/venv/bin/python -m compileall -q proto raft storage node client audit sim src \
    && useradd --system --uid 10001 --home-dir /data ledgermq \
    && mkdir -p /data /run/ledgermq && chown ledgermq /data /run/ledgermq
USER ledgermq
VOLUME ["/data", "/run/ledgermq"]
ENTRYPOINT ["ledgermq-entrypoint"]
CMD ["serve", "--config", "/etc/ledgermq/node.yaml"]
