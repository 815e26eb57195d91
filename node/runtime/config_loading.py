"""Loads a node's configuration from YAML file, environment and `--set` (the later wins), and
explains what is wrong with it.

This module opens no file but the configuration file, and no other module reads the environment.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_types import Section
from ledgermq.node.runtime.errors import ConfigError
from ledgermq.node.runtime.logs import MASK
from ledgermq.proto.host_port import is_ipv6

ENV_PREFIX = "LEDGERMQ_"
# Variables of the client commands, of the audit, of compose.yaml, of the examples and of the build;
# they are not settings of a node.
FOREIGN_ENV = frozenset(
    {
        *(
            "ENDPOINTS",
            "ACCESS_KEY",
            "SECRET_KEY",
            "CONTEXT",
            "CONFIG",
            "PARENT",
            "WORKER",
            "PURE",
            "FRONT",
        ),
        *(
            "TLS_CA",
            "TLS_CERTIFICATE",
            "TLS_CERTIFICATE_KEY",
            "VOLUMES",
            "REPLICAS",
            "BIND",
            "JAVA_HOME",
            "BASE_IMAGE",
        ),
    }
)
# Kubernetes sets these in every container for each Service of the namespace; a Service may be named
# `ledgermq`, or `ledgermq-…`.
_SERVICE_LINK = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_CREDENTIALS = re.compile(r"//.*@")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.+")


def load(
    path: Path | None, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """The configuration from file, environment and `--set`. Raises ConfigError, which lists every
    fault found."""
    tree = _read_file(path) if path is not None else {}
    variables = os.environ if environment is None else environment
    for name, value in sorted(variables.items()):
        if is_setting(name, value):
            _assign(
                tree,
                name.removeprefix(ENV_PREFIX).lower().split("__"),
                _scalar(value),
                f"the variable {name}",
            )
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"--set {setting!r} is not KEY=VALUE",
                "write for instance --set delivery.liveness_ms=5s",
            )
        _assign(tree, key.split("."), _scalar(value), f"--set {key}")
    return validate(tree)


def is_setting(name: str, value: str) -> bool:
    """Whether an environment variable sets a key of a node's configuration."""
    if not name.startswith(ENV_PREFIX) or (key := name.removeprefix(ENV_PREFIX)) in FOREIGN_ENV:
        return False
    if _SERVICE_LINK.fullmatch(key) or (key.endswith("PORT") and _SERVICE_URL.fullmatch(value)):
        return False
    # The audit reads LEDGERMQ_TLS as yes or no; the section `tls` of a node has keys.
    return key != "TLS" or isinstance(_scalar(value), dict)


def validate(tree: Mapping[str, Any]) -> NodeConfig:
    """The configuration from a plain mapping. Raises ConfigError, which lists every fault found."""
    try:
        return NodeConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_explain(tree, item) for item in error.errors()),
            "see: ledgermq config example",
        ) from None


def masked(config: NodeConfig) -> dict[str, Any]:
    """The configuration as plain JSON values for display; asterisks replace the secret, and the
    credentials in addresses of collectors."""
    shown: dict[str, Any] = config.model_dump(mode="json")
    if config.cluster.secret is not None:
        shown["cluster"]["secret"] = MASK
    for section in (shown["metrics"], shown["tracing"]):
        section["otlp_endpoint"] = _CREDENTIALS.sub(f"//{MASK}@", section["otlp_endpoint"])
    return shown


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"the configuration file {path} cannot be read ({reason})",
            "give the path of a YAML file",
        ) from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path} is not valid YAML ({' '.join(str(error).split())})",
            "see: ledgermq config example",
        ) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path} holds a {type(tree).__name__}, not keys and values",
            "see: ledgermq config example",
        )
    return tree


def _scalar(text: str) -> Any:
    """A value given as text: YAML for lists, maps, numbers and booleans, otherwise the text
    itself."""
    if is_ipv6(text.removeprefix("[").removesuffix("]")):
        # YAML reads `::` as a map and `[fd00::1]` as a list.
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _assign(tree: dict[str, Any], path: Sequence[str], value: Any, origin: str) -> None:
    place = tree
    for part in path[:-1]:
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            raise ConfigError(
                f"{origin}: {part!r} has no keys below it", "see: ledgermq config example"
            )
        place = below
    place[path[-1]] = value


def _explain(tree: Mapping[str, Any], item: Any) -> str:
    """Describes one fault: the key, its value, and what would be accepted."""
    location = tuple(part for part in item["loc"] if part != "[key]")
    key = ".".join(str(part) for part in location) or "configuration"
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"accepted here: {', '.join(known)}"
        return f"unknown key {key!r}; {hint}"
    if kind == "missing":
        return f"the key {key!r} is missing"
    if kind == "value_error":
        text = str(context["error"])
        return (
            f"{key}: {text}"
            if isinstance(item["input"], dict | BaseModel)
            else f"{key} = {item['input']!r}: {text}"
        )
    value = MASK if location and location[-1] == "secret" else repr(item["input"])
    return f"{key} = {value}: {_accepted(kind, context, item['msg'])}"


def _accepted(kind: str, context: Mapping[str, Any], message: str) -> str:
    phrases = {
        "literal_error": "expected one of {expected}",
        "string_pattern_mismatch": (
            "expected letters, digits, '_' and '-', at most 63, beginning with a letter or digit"
        ),
        "greater_than_equal": "expected at least {ge}",
        "less_than_equal": "expected at most {le}",
        "greater_than": "expected more than {gt}",
        "int_parsing": "expected a whole number",
        "int_type": "expected a whole number",
        "int_from_float": "expected a whole number",
        "uuid_parsing": "expected a UUID such as 6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "string_type": "expected text",
        "too_short": "expected at least {min_length} entry",
        "dict_type": "expected keys and values",
        "tuple_type": "expected a list",
        "model_type": "expected keys and values",
        "model_attributes_type": "expected keys and values",
    }
    if kind not in phrases:
        return message[0].lower() + message[1:]
    return phrases[kind].format_map(dict(context))


def _known_keys(location: Iterable[Any]) -> list[str]:
    """The keys accepted at this location of the configuration tree."""
    model: Any = NodeConfig
    for part in location:
        if isinstance(part, int):
            continue
        model = _below(
            model.model_fields[part].annotation
            if _is_section(model) and part in model.model_fields
            else model
        )
    return sorted(model.model_fields) if _is_section(model) else []


def _below(annotation: Any) -> Any:
    """The section that a field's annotation contains, searched through lists, maps and unions; the
    annotation itself if there is none."""
    if _is_section(annotation):
        return annotation
    if get_origin(annotation) is not None:
        for argument in get_args(annotation):
            found = _below(argument)
            if _is_section(found):
                return found
    return annotation


def _is_section(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, Section)
