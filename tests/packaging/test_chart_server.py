"""The objects of the Helm chart, given to a real API server of Kubernetes. Nothing else of
Kubernetes runs: no pod starts.

`apiserver/` builds the server and etcd from their published Go modules. The tests are skipped where
Helm or go is missing, or where the modules cannot be fetched.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import free_ports
from tests.cluster import wait_for
from tests.packaging.pods import HELM, NAME, profile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.weekly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]
HERE = Path(__file__).parent / "apiserver"
NAMESPACE, TOKEN = "queues", "the-tests"
OTHERS = {"Certificate", "ServiceMonitor", "PrometheusRule"}
"""Kinds of cert-manager and of Prometheus' operator, which a bare API server does not know."""
BUILD_S = 1500
Answer = tuple[int, Any]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go here")
    fetched = subprocess.run(
        [go, "mod", "download"],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"the modules of the API server cannot be fetched: {fetched.stderr.strip()}")
    found = tmp_path_factory.mktemp("program") / "apiserver"
    command = [go, "build", "-mod=readonly", "-ldflags=-s -w", "-o", str(found), "."]
    built = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert built.returncode == 0, built.stderr
    return found


@contextmanager
def ended(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


class Server:
    """The API server on a port of this machine, as its administrator sees it."""

    def __init__(self, port: int) -> None:
        self._root = f"https://127.0.0.1:{port}"
        context = ssl.create_default_context()
        # The server makes its own certificate.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        self._plurals: dict[tuple[str, str], str] = {}

    def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Answer:
        """The status and the body of an answer; 0 if there is none."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith(b"{") else text
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def _base(self, found: Any) -> str:
        version = found["apiVersion"]
        return f"/apis/{version}" if "/" in version else f"/api/{version}"

    def knows(self, found: Any) -> bool:
        """Whether the server has this kind."""
        key = found["apiVersion"], found["kind"]
        if key not in self._plurals:
            status, answer = self.ask("GET", self._base(found))
            if status == 200:
                self._plurals |= {
                    (key[0], each["kind"]): each["name"]
                    for each in answer["resources"]
                    if "/" not in each["name"]
                }
        return key in self._plurals

    def apply(self, found: Any, *, dry: bool = False) -> Answer:
        """A server-side apply. Unknown and doubled fields are refused, as `kubectl apply
        --validate=strict` does."""
        options = "fieldManager=helm&fieldValidation=Strict&force=true" + (
            "&dryRun=All" if dry else ""
        )
        return self.ask(
            "PATCH", f"{self._path(found)}?{options}", found, "application/apply-patch+yaml"
        )

    def delete(self, found: Any) -> Answer:
        return self.ask("DELETE", f"{self._path(found)}?propagationPolicy=Background")

    def _path(self, found: Any) -> str:
        assert self.knows(found), found["kind"]
        plural = self._plurals[found["apiVersion"], found["kind"]]
        return f"{self._base(found)}/namespaces/{NAMESPACE}/{plural}/{found['metadata']['name']}"


@pytest.fixture
def server(program: Path, tmp_path: Path) -> Iterator[Server]:
    """An API server with an empty store and the namespace of the release."""
    [address] = free_ports(1)
    client, peer, port = address.client_port, address.peer_port, address.http_port
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(f"{TOKEN},admin,admin,system:masters\n")
    key = tmp_path / "key.pem"
    openssl = ["openssl", "genrsa", "-out", str(key), "2048"]
    subprocess.run(openssl, check=True, capture_output=True, timeout=60)
    store = f"http://127.0.0.1:{client}"
    peers = f"http://127.0.0.1:{peer}"
    etcd = [
        "etcd",
        "--data-dir",
        str(tmp_path / "etcd"),
        "--listen-client-urls",
        store,
        "--advertise-client-urls",
        store,
    ]
    etcd += [
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"default={peers}",
    ]
    flags = {
        "etcd-servers": store,
        "cert-dir": str(tmp_path / "certificates"),
        "bind-address": "127.0.0.1",
        "secure-port": str(port),
        "authorization-mode": "RBAC",
        "token-auth-file": str(tokens),
        "service-account-issuer": "https://tests.invalid",
        "service-account-key-file": str(key),
        "service-account-signing-key-file": str(key),
        "service-cluster-ip-range": "10.96.0.0/16",
        "disable-admission-plugins": "ServiceAccount",
    }
    with ExitStack() as stack:
        stack.enter_context(ended([str(program), *etcd], tmp_path / "etcd.log"))
        process = stack.enter_context(
            ended(
                [str(program), *(f"--{name}={value}" for name, value in flags.items())],
                tmp_path / "server.log",
            )
        )
        found = Server(port)

        def ready() -> bool:
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            return found.ask("GET", "/readyz")[0] == 200

        wait_for(ready, 120, "the API server")
        status, answer = found.ask(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        )
        assert status == 201, answer
        yield found


@pytest.mark.parametrize("name", ["one", "three", "zones"])
def test_an_api_server_takes_every_object_and_every_upgrade(server: Server, name: str) -> None:
    """A profile is installed, then upgraded to other settings, more nodes and fewer: none of that
    may change a field that cannot change."""
    changes: list[tuple[str, ...]] = [(), ("--set", "podAnnotations.a=b")]
    if name != "one":
        changes += [("--set", "replicas=5"), ()]
    for change in changes:
        rendered = profile(name, *change)
        known = [found for found in rendered.objects if server.knows(found)]
        assert {found["kind"] for found in rendered.objects if found not in known} <= OTHERS
        assert {"StatefulSet", "Service", "ConfigMap", "Secret", "Job"} <= {
            found["kind"] for found in known
        }
        for found in known:
            if "helm.sh/hook" in found["metadata"].get("annotations", {}):
                # Helm deletes a hook before it creates it again.
                assert server.delete(found)[0] in (200, 404)
            for dry in (True, False):
                status, answer = server.apply(found, dry=dry)
                assert status in (200, 201), (
                    change,
                    found["kind"],
                    found["metadata"]["name"],
                    answer,
                )
        status, answer = server.ask(
            "GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{NAME}"
        )
        assert (status, answer["spec"]["replicas"]) == (
            200,
            rendered["StatefulSet"]["spec"]["replicas"],
        )


def test_api_server_refuses_invalid_manifests(server: Server) -> None:
    """An unknown field, a value out of range, and a field that cannot change once it is stored."""
    rendered = profile("three")
    stateful = rendered["StatefulSet"]
    misspelt = {**stateful, "spec": {**stateful["spec"], "podManagmentPolicy": "Parallel"}}
    status, answer = server.apply(misspelt, dry=True)
    assert status in (400, 422, 500) and "podManagmentPolicy" in answer, answer
    status, answer = server.apply(
        {**stateful, "spec": {**stateful["spec"], "replicas": -1}}, dry=True
    )
    assert status == 422 and "greater than or equal to 0" in answer, answer
    assert server.apply(stateful)[0] == 201
    status, answer = server.apply(
        {**stateful, "spec": {**stateful["spec"], "serviceName": "other"}}, dry=True
    )
    assert status == 422 and "immutable" in answer, answer
