"""The Helm chart: its values are documented and checked, its objects are valid, and what a node
gets is what the node understands.

Without `helm` only the files are compared. With it, and with `kubernetes-validate`, everything that
the chart renders is held against the schemas of three versions of Kubernetes. No test here talks to
a Kubernetes cluster.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from ledgermq.node.runtime.security_sections import objection_to_secret
from tests.packaging.pods import CHART, HELM, KUBERNETES, NAME, ROOT, Rendered, profile

PROFILES = ("one", "three", "zones")
FREE = {
    "config",
    "resources",
    "affinity",
    "annotations",
    "labels",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
}
"""Objects whose keys are not the chart's."""
rendered = [
    pytest.mark.slow,
    pytest.mark.verify,
    pytest.mark.skipif(HELM is None, reason="helm is not installed"),
]


def paths(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All keys of the values, as paths."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict) and key not in FREE:
            yield from paths(value, (*above, key))


def of_schema(schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All keys that the schema knows; everything else must be refused."""
    if "properties" in schema:
        assert schema["additionalProperties"] is False, above
    for key, below in schema.get("properties", {}).items():
        yield (*above, key)
        yield from of_schema(below, (*above, key))


def values(name: str = "values") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / f"{name}.yaml").read_text())
    return found


def test_the_schema_knows_every_value_and_no_other() -> None:
    """A misspelt value is refused; a value that the schema forgot could not be set."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    optional = {("global",), ("tls", "certManager", "issuerRef", "group")}
    assert set(of_schema(schema)) == set(paths(values())) | optional


def test_every_value_is_documented() -> None:
    """A comment stands directly above it, or above an object that it belongs to."""
    documented: list[tuple[int, bool]] = []
    missing, comment = [], False
    for number, line in enumerate((CHART / "values.yaml").read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            comment = bool(line.strip())
            continue
        indent = len(line) - len(line.lstrip())
        documented = [(depth, known) for depth, known in documented if depth < indent]
        if not comment and not any(known for _, known in documented):
            missing.append(f"{number}: {line}")
        documented.append((indent, comment))
        comment = False
    assert not missing


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_changes_values_that_exist(profile: str) -> None:
    assert set(paths(values(f"values-{profile}"))) <= set(paths(values()))
    assert (CHART / f"values-{profile}.yaml").read_text().startswith("# "), "it says what it is for"


def test_the_chart_has_the_version_and_the_alerts_of_the_repository() -> None:
    """The alerts are one file: the chart's is a link to it, which Helm follows."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert (CHART / "files/alerts.yaml").resolve() == ROOT / "deploy/prometheus/alerts.yaml"


class TestRendered:
    """What needs `helm`."""

    pytestmark = rendered

    @pytest.mark.parametrize("version", KUBERNETES)
    @pytest.mark.parametrize("name", PROFILES)
    def test_every_object_is_valid_in_three_versions_of_kubernetes(
        self, name: str, version: str, tmp_path: Path
    ) -> None:
        """Strictly: an unknown key, which a server would ignore or refuse, is an error. Objects of
        other projects have no schema here."""
        validate = shutil.which("kubernetes-validate")
        if validate is None:
            pytest.skip("kubernetes-validate is not installed")
        foreign = {"Certificate", "ServiceMonitor", "PrometheusRule"}
        more = (
            "--set",
            "networkPolicy.clients[0].podSelector.matchLabels.app=shop",
            "--set",
            "antiAffinity=soft",
        )
        stored = (
            "--set",
            "tiered.url=s3://bucket/queues",
            "--set",
            "tiered.existingSecret=store-keys",
        )
        for arguments in ((), (*more, *stored)):
            objects = [
                known
                for known in profile(name, *arguments, kubernetes=version).objects
                if known["kind"] not in foreign
            ]
            (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(objects))
            command = [validate, "--strict", "--kubernetes-version", version, "objects.yaml"]
            found = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert found.returncode == 0, found.stdout + found.stderr
            assert found.stdout.count(" passed ") == len(objects), found.stdout

    def test_the_objects_of_each_profile(self) -> None:
        plain = [
            "ConfigMap",
            "Job",
            "Job",
            "NetworkPolicy",
            "Secret",
            "Service",
            "Service",
            "StatefulSet",
        ]
        more = ["Certificate", "PodDisruptionBudget", "PrometheusRule", "ServiceMonitor"]
        assert profile("one").kinds() == plain
        assert profile("three").kinds() == profile("zones").kinds() == sorted([*plain, *more])

    @pytest.mark.parametrize(("name", "nodes"), [("one", 1), ("three", 3), ("zones", 3)])
    def test_every_node_understands_its_configuration(
        self, name: str, nodes: int, tmp_path: Path
    ) -> None:
        """Names come from the ordinals, addresses from the headless Service, and clients must
        sign."""
        found = profile(name)
        headless = found.service(f"{NAME}-nodes")["spec"]
        assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"] is True
        for ordinal in range(nodes):
            config = found.config(ordinal, tmp_path)
            config.check_exposure()
            assert config.node == f"{NAME}-{ordinal}" and sorted(config.nodes) == [
                f"{NAME}-{other}" for other in range(nodes)
            ]
            assert config.address.host == f"{NAME}-{ordinal}.{NAME}-nodes.queues.svc.cluster.local"
            assert (
                config.access.authentication == "required"
                and config.access.bootstrap_user == "root"
                and not config.join
            )
            assert config.opens_http == (name != "one") and config.http_hosts == ("0.0.0.0",)
            assert {group.replication for group in config.cluster.groups} == {
                "ha" if name == "zones" else "raft"
            }
            assert str(config.data).startswith("/data/"), (
                "the volume's own directory may hold lost+found"
            )

    def test_the_generated_identity_is_sound(self) -> None:
        secret = profile("one")["Secret"]
        data = {key: base64.b64decode(text) for key, text in secret["data"].items()}
        assert (
            UUID(data["cluster-id"].decode()).version == 4
            and 1_700_000_000_000 < int(data["created-ms"]) < 1 << 46
        )
        assert (
            len(data["cluster-secret"]) >= 32
            and objection_to_secret(data["first-user-secret"]) is None
        )
        assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        given = Rendered("--set", "cluster.existingSecret=mine")
        assert "Secret" not in given.kinds()
        assert {
            row["valueFrom"].get("secretKeyRef", {"name": "mine"})["name"]
            for row in given.container["env"]
        } == {"mine"}

    def test_a_node_beyond_the_first_ones_joins_and_restarts_no_other(self, tmp_path: Path) -> None:
        """The first voters of the controller quorum are those of the first start, whatever number
        of nodes runs."""
        before, after = Rendered(), Rendered("--set", "replicas=4")
        joining = after.config(3, tmp_path)
        assert joining.join == "spare" and sorted(joining.nodes) == [
            f"{NAME}-{ordinal}" for ordinal in range(4)
        ]
        assert sorted(after.config(0, tmp_path).nodes) == [
            f"{NAME}-{ordinal}" for ordinal in range(3)
        ]
        pods = [found["StatefulSet"]["spec"]["template"] for found in (before, after)]
        assert pods[0] == pods[1]
        changed = Rendered("--set", "config.retention.hours=24")
        assert changed.config(0, tmp_path).retention.hours == 24
        assert changed["StatefulSet"]["spec"]["template"]["metadata"] != pods[0]["metadata"], (
            "another setting restarts the nodes"
        )

    def test_pods_start_together_and_stop_one_by_one(self) -> None:
        found = profile("three")
        assert found["StatefulSet"]["spec"]["podManagementPolicy"] == "Parallel"
        assert found["StatefulSet"]["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
        assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
        assert found.pod["terminationGracePeriodSeconds"] == 105
        hook = found.container["lifecycle"]["preStop"]["exec"]["command"]
        assert hook[:2] == ["sh", "-c"]
        said = " ".join(hook[2].split())
        assert (
            f'member drain "$LEDGERMQ_NODE" --timeout 60s --endpoints "localhost:8081;{NAME}:8081"'
            " --cluster-secret" in said
        )
        assert "--tls" not in hook[2], "tls.mode both serves loopback in plaintext"
        zones = profile("zones").container["lifecycle"]["preStop"]["exec"]["command"][2]
        assert zones.endswith("--tls --ca /etc/ledgermq/tls/ca.crt")

    def test_the_pre_stop_hook_is_a_command_that_exists(self, tmp_path: Path) -> None:
        """The shell expands the name of the node, and the command line takes every option."""
        script = profile("zones").container["lifecycle"]["preStop"]["exec"]["command"][2]
        (tmp_path / "ledgermq").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / "ledgermq").chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LEDGERMQ_NODE": f"{NAME}-1"}
        said = subprocess.run(
            ["sh", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout
        from ledgermq.client.cli.member_commands import drain

        arguments = said.split("\n")[:-1]
        assert arguments[:3] == ["member", "drain", f"{NAME}-1"]
        context = drain.make_context("drain", arguments[2:])
        assert (
            context.params["node"] == f"{NAME}-1"
            and context.params["timeout_s"] == 60.0
            and context.params["tls"] is True
        )

    def test_members_follow_the_number_of_replicas(self, tmp_path: Path) -> None:
        """Nodes leave in a hook before their pods stop, and join in a job of its own for each
        upgrade, beside pods that wait for it to be ready. The shell and the command line take every
        option, and no Service takes the pods of the jobs for nodes."""
        settings = [
            f"external.nodes[{k}].host=mq{k}.example.com,external.nodes[{k}].port={31080 + k}"
            for k in range(5)
        ]
        arguments = [
            "--set",
            "external.enabled=true",
            *(part for setting in settings for part in ("--set", setting)),
        ]
        found = profile("zones", "--set", "replicas=5", *arguments)
        leave, join = found.jobs()
        assert (
            leave["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade,pre-rollback"
            and "annotations" not in join["metadata"]
        )
        assert join["metadata"]["name"] != profile("zones").jobs()[1]["metadata"]["name"], (
            "a job cannot be changed"
        )
        (tmp_path / "ledgermq").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / "ledgermq").chmod(0o755)
        from ledgermq.client.cli.scale_commands import scale

        for name, template in (
            ("leave", None),
            ("members", f"{{node}}.{NAME}-nodes.queues.svc.cluster.local:8081:9081:10081:11081"),
        ):
            environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
            said = subprocess.run(
                found.job(name),
                env=environment,
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            ).stdout.split("\n")
            assert said[:3] == ["member", "scale", NAME]
            given = scale.make_context("scale", said[2:-1]).params
            assert (
                given["count"],
                given["template"],
                given["yes"],
                given["tls"],
                given["timeout_s"],
            ) == (5, template, True, True, 600.0)
            assert given["advertised"] == (
                ()
                if template is None
                else tuple(f"mq{k}.example.com:{31080 + k}" for k in range(5))
            )
        for known in found.objects:
            if known["kind"] == "Service":
                assert (
                    not known["spec"]["selector"].items()
                    <= join["spec"]["template"]["metadata"]["labels"].items()
                )
        assert "Job" not in Rendered("--set", "members.follow=false").kinds()

    def test_probes_ask_the_pages_that_stay_open(self) -> None:
        container = profile("one").container
        pages = {
            kind: container[f"{kind}Probe"]["httpGet"]
            for kind in ("startup", "liveness", "readiness")
        }
        assert pages["startup"] == pages["liveness"] == {"path": "/healthz", "port": "http"}
        assert pages["readiness"] == {"path": "/readyz", "port": "http"}
        assert (
            container["startupProbe"]["periodSeconds"]
            * container["startupProbe"]["failureThreshold"]
            == 1800
        )

    def test_chart_secrets_are_group_readable_only(self) -> None:
        found = profile("three")
        modes = {
            volume["name"]: volume["secret"]["defaultMode"]
            for volume in found.pod["volumes"]
            if "secret" in volume
        }
        assert modes == {"cluster": 0o440, "tls": 0o440}
        context = found.pod["securityContext"]
        assert (
            context["fsGroup"] == context["runAsUser"] == 10001 and context["runAsNonRoot"] is True
        )
        assert found.container["securityContext"]["readOnlyRootFilesystem"] is True
        assert (
            found.pod["automountServiceAccountToken"] is False
            and found.pod["enableServiceLinks"] is False
        )
        # In the image, another user's entry point would generate an identity.
        assert found.container["command"] == ["ledgermq"]
        assert f"--uid {context['runAsUser']} " in (ROOT / "Dockerfile").read_text()

    def test_the_certificate_names_every_node_and_localhost(self) -> None:
        spec = profile(
            "zones",
            "--set",
            "replicas=4",
            "--set",
            "tls.certManager.extraDnsNames[0]=mq.example.com",
        )["Certificate"]["spec"]
        nodes = [f"{NAME}-{ordinal}" for ordinal in range(4)]
        assert {"localhost", NAME, "mq.example.com", *nodes} <= set(spec["dnsNames"])
        assert {f"{node}.{NAME}-nodes.queues.svc.cluster.local" for node in nodes} <= set(
            spec["dnsNames"]
        )
        assert {"server auth", "client auth"} <= set(spec["usages"]) and spec[
            "secretName"
        ] == f"{NAME}-tls"

    def test_sealed_files_go_to_the_store_of_the_values(self, tmp_path: Path) -> None:
        """The nodes understand the section; the keys are a file of a Secret that the node's group
        reads. Without one none is mounted."""
        place = [
            "--set",
            "tiered.url=s3://bucket/queues",
            "--set",
            "tiered.endpoint=https://store.example.com:9000",
        ]
        found = Rendered(
            *place,
            "--set",
            "tiered.existingSecret=store-keys",
            "--set",
            "config.tiered.retry_ms=5s",
        )
        tiered = found.config(0, tmp_path).tiered
        assert (tiered.url, tiered.endpoint, tiered.retry_ms) == (
            "s3://bucket/queues",
            "https://store.example.com:9000",
            5000,
        )
        (volume,) = (volume for volume in found.pod["volumes"] if volume["name"] == "store")
        assert (
            volume["secret"]["secretName"] == "store-keys"
            and volume["secret"]["defaultMode"] == 0o440
        )
        (mount,) = (mount for mount in found.container["volumeMounts"] if mount["name"] == "store")
        (item,) = volume["secret"]["items"]
        assert (
            str(tiered.credentials_file) == f"{mount['mountPath']}/{item['path']}"
            and mount["readOnly"] is True
        )
        plain = Rendered(*place)
        assert plain.config(0, tmp_path).tiered.credentials_file is None
        assert "store" not in {volume["name"] for volume in plain.pod["volumes"]}
        assert Rendered().config(0, tmp_path).tiered.url == ""

    def test_alerts_and_dashboards_find_the_nodes(self) -> None:
        """The rules are those of the repository, byte for byte after YAML; the job has the name
        that they use."""
        found = profile("three")
        alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
        assert found["PrometheusRule"]["spec"] == alerts
        (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
        assert {"targetLabel": "job", "replacement": "ledgermq"} in endpoint["relabelings"]
        wanted = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        selected = [
            known
            for known in found.objects
            if known["kind"] == "Service" and wanted <= known["metadata"]["labels"].items()
        ]
        assert [known["metadata"]["name"] for known in selected] == [f"{NAME}-nodes"], (
            "each node once"
        )

    def test_machines_and_zones_share_no_fate(self) -> None:
        three, zones = profile("three"), profile("zones")
        (term,) = three.pod["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        labels = three["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
        assert (
            term["topologyKey"] == "kubernetes.io/hostname"
            and term["labelSelector"]["matchLabels"].items() <= labels
        )
        assert "topologySpreadConstraints" not in three.pod
        (spread,) = zones.pod["topologySpreadConstraints"]
        assert (spread["maxSkew"], spread["minDomains"], spread["whenUnsatisfiable"]) == (
            1,
            3,
            "DoNotSchedule",
        )
        assert "affinity" not in profile("one").pod

    def test_only_nodes_reach_the_ports_of_nodes(self) -> None:
        found = Rendered("--set", "workers=2")
        peers, clients, pages = found["NetworkPolicy"]["spec"]["ingress"]
        assert [row["port"] for row in peers["ports"]] == [9081, 10081, 9091, 10091]
        assert (
            peers["from"][0]["podSelector"]["matchLabels"]
            == found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        )
        assert "from" not in clients and "from" not in pages
        only = Rendered("--set", "networkPolicy.clients[0].podSelector.matchLabels.app=shop")[
            "NetworkPolicy"
        ]["spec"]["ingress"][1]
        jobs = {
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/name": "ledgermq-members",
                    "app.kubernetes.io/instance": "mq",
                }
            }
        }
        assert only["from"] == [
            *peers["from"],
            jobs,
            {"podSelector": {"matchLabels": {"app": "shop"}}},
        ], "a stopping node and the jobs ask"

    def test_nodes_are_advertised_at_their_own_addresses(self, tmp_path: Path) -> None:
        settings = [
            f"external.nodes[{k}].host=mq{k}.example.com,external.nodes[{k}].port={31080 + k}"
            for k in range(3)
        ]
        arguments = [
            "--set",
            "external.enabled=true",
            *(part for setting in settings for part in ("--set", setting)),
        ]
        found = Rendered(*arguments, "--set", "external.type=NodePort")
        assert found.config(1, tmp_path).address.advertised == ("mq1.example.com", 31081)
        (port,) = found.service(f"{NAME}-1")["spec"]["ports"]
        assert (port["port"], port["nodePort"]) == (8081, 31081)
        selector = found.service(f"{NAME}-1")["spec"]["selector"]
        assert selector["statefulset.kubernetes.io/pod-name"] == f"{NAME}-1"
        (port,) = Rendered(*arguments).service(f"{NAME}-2")["spec"]["ports"]
        assert port["port"] == 31082 and "nodePort" not in port

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ("replica=3", "replica"),
            ("tls.mode=on", "tls.mode|/tls/mode"),
            ("tls.mode=required", "tls.mode and tls.peers need a certificate"),
            ("tls.certManager.enabled=true", "issuerRef.name is empty"),
            (
                "external.enabled=true",
                "external.nodes has 0 entries: give the address of each of the 3 nodes",
            ),
            ("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor needs metrics.enabled"),
            (
                "cluster.initialNodes=2",
                "broker group g1 names node 2, but cluster.initialNodes is 2",
            ),
            ("drainSeconds=-1", "drainSeconds"),
            (
                "tiered.endpoint=http://store:9000",
                "tiered.url is empty: give the place in the object store",
            ),
            ("tiered.existingSecret=store-keys", "tiered.url is empty"),
            ("tiered.url=https://store/bucket", "tiered.url|/tiered/url"),
            ("tiered.urls=s3://bucket", "urls"),
            ("members.timeoutSeconds=1", "timeoutSeconds"),
        ],
    )
    def test_impossible_chart_values_are_refused_by_rendering(
        self, setting: str, said: str
    ) -> None:
        error = Rendered("--set", setting).error
        assert re.search(said, error), error

    def test_an_older_kubernetes_is_refused(self) -> None:
        assert "kubeVersion" in Rendered(kubernetes="1.26.0").error
