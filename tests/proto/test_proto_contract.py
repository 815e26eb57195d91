"""Our client contract against the descriptors of the installed official client, and its
independence from them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from ledgermq.proto import admin_pb2, messaging_pb2, peer_pb2

# Newer than the installed official client.
NEWER = {
    ("Settings", "client_properties"),
    ("Settings.ClientPropertiesEntry", ""),
    ("Code", "INVALID_CLIENT_PROPERTIES"),
}

PRINT_OFFICIAL = """
import sys
import tomllib
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from rocketmq.grpc_protocol import definition_pb2, service_pb2
files = FileDescriptorSet()
for module in (definition_pb2, service_pb2):
    module.DESCRIPTOR.CopyToProto(files.file.add())
sys.stdout.buffer.write(files.SerializeToString())
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorSet:
    """The official descriptors, read in a process of their own: that client writes logs below HOME
    when imported."""
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_OFFICIAL], env=env, capture_output=True, check=True, cwd=home
    )
    return FileDescriptorSet.FromString(done.stdout)


def flat(files: list[FileDescriptorProto]) -> tuple[dict[str, set[object]], dict[str, set[object]]]:
    """Messages and enums by name, each as a set of what reaches the wire or a client."""
    messages: dict[str, set[object]] = {}
    enums: dict[str, set[object]] = {}

    def add_enum(prefix: str, enum: EnumDescriptorProto) -> None:
        enums[prefix + enum.name] = {(v.name, v.number) for v in enum.value}

    def add(prefix: str, message: DescriptorProto) -> None:
        groups = [o.name for o in message.oneof_decl]
        fields: set[object] = set()
        for f in message.field:
            group = (
                groups[f.oneof_index] if f.HasField("oneof_index") and not f.proto3_optional else ""
            )
            fields.add(
                (
                    f.name,
                    f.number,
                    f.type,
                    f.label,
                    f.type_name.split(".v2.")[-1],
                    f.proto3_optional,
                    group,
                )
            )
        messages[prefix + message.name] = fields
        for nested in message.nested_type:
            add(f"{prefix}{message.name}.", nested)
        for enum in message.enum_type:
            add_enum(f"{prefix}{message.name}.", enum)

    for file in files:
        for message in file.message_type:
            add("", message)
        for enum in file.enum_type:
            add_enum("", enum)
    return messages, enums


def ours() -> FileDescriptorProto:
    file = FileDescriptorProto()
    messaging_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def test_messages_and_enums_are_those_of_the_official_client(official: FileDescriptorSet) -> None:
    """Every message, field number, type, label and presence, and every enum value, equals the
    official one, newest additions apart."""
    official_messages, official_enums = flat(list(official.file))
    our_messages, our_enums = flat([ours()])
    assert set(our_messages) - set(official_messages) == {"Settings.ClientPropertiesEntry"}
    for name, fields in official_messages.items():
        extra = {field for field in our_messages[name] - fields if (name, field[0]) not in NEWER}  # type: ignore[index]
        assert fields <= our_messages[name] and not extra, name
    assert our_enums.keys() == official_enums.keys()
    for name, values in official_enums.items():
        assert (
            values <= our_enums[name] and {(name, v[0]) for v in our_enums[name] - values} <= NEWER
        ), name  # type: ignore[index]


def test_methods_are_those_of_the_official_service(official: FileDescriptorSet) -> None:
    """All 17 methods with the same request, response and streaming."""

    def methods(files: list[FileDescriptorProto]) -> set[object]:
        services = [
            service
            for file in files
            for service in file.service
            if service.name == "MessagingService"
        ]
        last = [
            (m, m.input_type.split(".")[-1], m.output_type.split(".")[-1])
            for m in services[0].method
        ]
        return {
            (m.name, request, response, m.client_streaming, m.server_streaming)
            for m, request, response in last
        }

    assert methods([ours()]) == methods(list(official.file)) and len(methods([ours()])) == 17


def test_the_contract_lives_in_our_own_package() -> None:
    """No symbol of ours can clash with the official client in one process."""
    for module in (messaging_pb2, admin_pb2, peer_pb2):
        assert module.DESCRIPTOR.package.startswith(
            "ledgermq."
        ) and module.DESCRIPTOR.name.startswith("ledgermq/proto/")


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    """The committed generated code is what the .proto sources give, whichever release of the
    generator wrote it."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    source = Path(messaging_pb2.__file__ or "").parent
    files = sorted(source.glob("*.proto"))
    link = tmp_path / "in" / "ledgermq"
    link.mkdir(parents=True)
    (link / "proto").symlink_to(source)
    well_known = str(Path(protoc.__file__).parent / "_proto")
    targets = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    names = [f"{tmp_path}/in/ledgermq/proto/{file.name}" for file in files]
    assert protoc.main(["protoc", f"-I{tmp_path / 'in'}", f"-I{well_known}", *targets, *names]) == 0
    generated = sorted((tmp_path / "ledgermq" / "proto").iterdir())
    assert len(generated) == 3 * len(files)
    for file in generated:
        if file.name.endswith("_grpc.py") and not (source / file.name).exists():
            assert "Stub(" not in file.read_text(), f"{file.name} is missing: run make proto"
            continue
        assert substance(file) == substance(source / file.name), (
            f"{file.name} is stale: run make proto"
        )


def substance(file: Path) -> list[str]:
    """Generated code without what differs between releases of the generator: its version, how it
    spells a class and a constant text."""
    text = re.sub(r"(?<=_runtime_version\.Domain\.PUBLIC,\n)( +\d+,\n){3}", "", file.read_text())
    text = text.replace("(object):", ":").replace("+ f'", "+ '")
    versions = ("# Protobuf Python Version: ", "GRPC_GENERATED_VERSION = ")
    return [line for line in text.splitlines() if not line.startswith(versions)]


def test_users_with_protobuf_6_can_import_the_generated_code() -> None:
    """Generated code refuses a runtime older than its generator, so `make proto` uses an old one.
    The bounds follow from it."""
    source = Path(messaging_pb2.__file__ or "").parent
    requirements = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())[
        "project"
    ]["dependencies"]
    (protobuf,) = (found for found in requirements if found.startswith("protobuf"))
    (grpcio,) = (found for found in requirements if found.startswith("grpcio"))
    written = {
        re.findall(r"# Protobuf Python Version: (\S+)", file.read_text())[0]
        for file in source.glob("*_pb2.py")
    }
    assert {f"protobuf>={version},<8" for version in written} == {protobuf}
    written = {
        re.findall(r"GRPC_GENERATED_VERSION = '(\S+)'", file.read_text())[0]
        for file in source.glob("*_pb2_grpc.py")
    }
    assert {f"grpcio>={version}" for version in written} == {grpcio}


def test_unknown_status_values_can_be_absent() -> None:
    """A number a node does not know is absent in the admin contract, never a zero."""
    replica = admin_pb2.ReplicaInfo(node="n1")
    for name in ("role", "end_index", "durable_index", "commit_index", "lag_entries"):
        assert not replica.HasField(name)
    replica.end_index = 0
    assert replica.HasField("end_index")
