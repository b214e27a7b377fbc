"""What identifies a cluster: its description as plain values, and their hash."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from emu.cluster.spec import ClusterSpec

MODEL_VERSION = 1  # raised when the same description begins to mean other times


def describe(spec: ClusterSpec) -> dict[str, Any]:
    """Return a description as plain JSON values."""
    return {"model": MODEL_VERSION, **_plain(spec)}


def digest(spec: ClusterSpec) -> str:
    """Return the hash of a description; the cluster's name does not count."""
    text = json.dumps({**describe(spec), "name": ""}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "infinite"
    return value
