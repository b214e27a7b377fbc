"""What a table of the catalogue may hold: each kind of thing with its keys, and how each value is read.

A value stands alone (`memory = "80 GB"`) or with where it comes from:
`memory = { value = "80 GB", source = "ml-eng", memory = false }`. Building links and routes from the tables is
the cluster's business.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from emu.errors import ConfigError
from emu.units import (
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops,
    parse_fraction,
    parse_number,
    parse_power,
    parse_time,
)

Parser = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Table:
    """A table inside an entry: its keys and their parsers; `many` for an array of such tables."""

    keys: Mapping[str, "Parser | Table"]
    many: bool = False
    name_instead: bool = False  # a string names an entry of the catalogue instead


def text(value: Any, where: str) -> str:
    """Read a string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: must be a string in quotes, got {value!r}")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    """Read a list of strings; one string is a list of one."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ConfigError(f"{where}: must be a list of strings, got {value!r}")
    return tuple(text(item, where) for item in items)


def flag(value: Any, where: str) -> bool:
    """Read true or false, as TOML's words or as a setting's string."""
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: must be true or false, got {value!r}")
    return value


def choice(*options: str) -> Parser:
    """Make a parser that takes one of these words."""

    def read(value: Any, where: str) -> str:
        if value not in options:
            raise ConfigError(f"{where}: must be one of {', '.join(options)}, got {value!r}")
        return value

    return read


def choices(*options: str) -> Parser:
    """Make a parser that takes a list of these words, at least one; a setting separates them by commas."""
    read_one = choice(*options)

    def read(value: Any, where: str) -> tuple[str, ...]:
        items = texts(value.split(",") if isinstance(value, str) else value, where)
        if not items:
            raise ConfigError(f"{where}: must name one at least of {', '.join(options)}, got none; leave the key out")
        return tuple(read_one(item.strip(), where) for item in items)

    return read


def count_or_any(value: Any, where: str) -> int | str:
    """Read a count, or the word "any": as many as a run asks for."""
    return "any" if value == "any" else parse_count(value, where)


def index_list(value: Any, where: str) -> tuple[int, ...]:
    """Read a list of indices."""
    if not isinstance(value, list):
        raise ConfigError(f"{where}: must be a list of indices, got {value!r}")
    return tuple(parse_count(item, where, least=0) for item in value)


def index_lists(value: Any, where: str) -> tuple[tuple[int, ...], ...]:
    """Read a list of lists of indices, such as pairs."""
    if not isinstance(value, list):
        raise ConfigError(f"{where}: must be a list of lists of indices, got {value!r}")
    return tuple(index_list(item, where) for item in value)


def ratio(value: Any, where: str) -> float:
    """Read an oversubscription: "4:1" or 4, at least 1."""
    if isinstance(value, str) and ":" in value:
        down, up = value.split(":", 1)
        number = parse_number(down, where) / _positive(up, where)
    else:
        number = parse_number(value, where)
    if number < 1:
        raise ConfigError(f"{where}: must be at least 1:1, got {value!r}")
    return number


def texts_or_numbers(value: Any, where: str) -> Any:
    """Read a table, a list or a string as it stands; its reader checks it."""
    return value


def _positive(value: Any, where: str) -> float:
    number = parse_number(value, where)
    if number <= 0:
        raise ConfigError(f"{where}: must be above zero, got {value!r}")
    return number


latency = partial(parse_time, zero=True)
size = parse_bytes
size_or_zero = partial(parse_bytes, zero=True)
count_or_zero = partial(parse_count, least=0)

def by_size(value: Any, where: str) -> tuple[tuple[int, float], ...]:
    """Read [["64 KiB", 1.2], ["8 MiB", 2]]: from which size on a byte takes how many times as long."""
    pairs = value if isinstance(value, list) else [value]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ConfigError(f'{where}: must be a list such as [["64 KiB", 1.2], ["8 MiB", 2]], got {value!r}')
    knots = tuple((parse_bytes(size, where), _positive(times, where)) for size, times in pairs)
    if any(b[0] <= a[0] or b[0] * b[1] < 0.999 * a[0] * a[1] for a, b in zip(knots, knots[1:], strict=False)):
        raise ConfigError(f"{where}: sizes must grow, and what they take must not shrink, got {value!r}")
    return knots


WORDS: dict[str, Parser] = {"base": text, "note": text, "source": text, "aliases": texts, "title": text}

_Keys = dict[str, "Parser | Table"]
_GPU: _Keys = {
    "fp64": parse_flops, "fp64_matrix": parse_flops, "fp32": parse_flops, "fp32_matrix": parse_flops,
    "tf32": parse_flops, "fp16": parse_flops, "bf16": parse_flops, "fp8": parse_flops, "fp4": parse_flops,
    "int8": parse_flops, "memory": size, "memory_bandwidth": parse_bandwidth, "scaleup": text,
    "scaleup_links": parse_count, "pcie": text, "pcie_lanes": parse_count, "power": parse_power,
    "flops_efficiency": parse_fraction, "memory_efficiency": parse_fraction, "launch_overhead": latency,
    "memory_by_size": by_size,
}  # fmt: skip
_CPU: _Keys = {
    "cores": parse_count, "lanes": parse_count, "pcie": text, "memory_bandwidth": parse_bandwidth,
    "interconnect": parse_bandwidth, "interconnect_peer": parse_bandwidth, "interconnect_latency": latency,
    "root_overhead": ratio,
}  # fmt: skip
_LINK: _Keys = {
    "medium": choice("pcie", "nvlink", "xgmi", "ethernet", "infiniband"), "bandwidth": parse_bandwidth,
    "lanes": parse_count, "efficiency": parse_fraction, "latency": latency,
}  # fmt: skip
_TRANSPORT: _Keys = {
    "kind": choice("nvlink", "pcie", "rdma", "tcp"), "latency": latency, "send_overhead": latency,
    "receive_overhead": latency, "eager": size_or_zero, "mtu": size, "headers": size_or_zero,
    "frame": size_or_zero, "efficiency": parse_fraction, "cpu_per_packet": latency, "cpu_per_byte": latency,
    "offload": flag, "segment": size, "sockets": parse_count, "gpudirect": flag,
    "initial_window": parse_count, "window_limit": size, "rto_min": parse_time, "rto_initial": parse_time,
    "rto_max": parse_time, "congestion": choice("reno", "cubic", "dctcp"), "dctcp_gain": parse_fraction,
    "pfc": flag, "nccl_algorithms": choices("ring", "tree", "nvls", "nvls_tree"),
    "nccl_protocols": choices("LL", "LL128", "Simple"), "nccl_buffer": size, "nccl_chunk": size,
    "by_size": by_size,
}  # fmt: skip
_SWITCH: _Keys = {
    "medium": choice("pcie", "nvlink", "ethernet", "infiniband"), "ports": parse_count,
    "bandwidth": parse_bandwidth, "latency": latency, "buffer": size, "shared_buffer": size,
    "ecn_threshold": size, "reduces": flag, "power": parse_power, "price_usd": _positive,
}  # fmt: skip
_PCIE_SWITCH = Table(
    {"name": text, "under": text, "gpus": index_list, "nics": index_list, "lanes": parse_count}, many=True
)
_PCIE = Table({
    "link": text, "switch": text, "switches": _PCIE_SWITCH, "gpu_sockets": index_list,
    "nic_sockets": index_list, "gpu_lanes": parse_count, "other_lanes": index_list,
    "peer": choice("all", "socket", "switch", "none"), "both_directions": parse_bandwidth,
    "staging_latency": latency, "ideal": flag,
})  # fmt: skip
_SCALEUP = Table({
    "kind": choice("none", "switch", "mesh", "pairs", "all"), "link": text, "links": parse_count,
    "mesh": index_lists, "pairs": index_lists, "reduces": flag, "switches": parse_count,
})  # fmt: skip
_NIC = Table({
    "link": text, "count": count_or_zero, "bandwidth": parse_bandwidth, "lanes": parse_count,
    "both_directions": flag, "gpu_nics": index_list,
})  # fmt: skip
_NODE: _Keys = {
    "gpu": text, "gpus": count_or_any, "cpu": text, "sockets": parse_count, "lanes": parse_count,
    "memory": size, "scaleup": _SCALEUP, "pcie": _PCIE, "nic": _NIC,
}  # fmt: skip
FABRIC: _Keys = {
    "kind": choice("switch", "leaf-spine", "fat-tree", "rail"), "switch": text, "ports": parse_count,
    "down": parse_count, "up": parse_count, "spines": parse_count, "oversubscription": ratio, "k": parse_count,
    "routing": choice("ecmp", "spray"), "seed": count_or_zero, "uplink": parse_bandwidth,
    "cross_rail": choice("spine", "nvswitch"), "hop_latency": latency,
}  # fmt: skip
FAULTS: _Keys = {
    "slow": texts_or_numbers, "degrade": texts_or_numbers, "jitter": texts_or_numbers,
    "flap": texts_or_numbers, "pause": texts_or_numbers, "death": texts_or_numbers,
}  # fmt: skip
_CLUSTER: _Keys = {
    "node": text, "nodes": count_or_any, "groups": Table({"node": text, "nodes": parse_count}, many=True),
    "transport": text, "fabric": Table({**FABRIC, **WORDS}, name_instead=True), "faults": Table(FAULTS),
    "name": text,
}  # fmt: skip

KINDS: dict[str, dict[str, Parser | Table]] = {
    kind: {**WORDS, **keys}
    for kind, keys in {
        "gpus": _GPU, "cpus": _CPU, "links": _LINK, "transports": _TRANSPORT, "switches": _SWITCH,
        "nodes": _NODE, "fabrics": FABRIC, "clusters": _CLUSTER,
    }.items()
}  # fmt: skip


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names most like this one, nearest first."""
    return difflib.get_close_matches(name, list(known), n=limit, cutoff=0.5)


def unknown(what: str, name: str, known: Iterable[str], listed_by: str = "") -> str:
    """Write `unknown WHAT 'NAME'; did you mean …?`, or list what there is.

    `listed_by` is the command that lists it, where there is too much for a line.
    """
    names = sorted(known)
    close = nearest(name, names)
    if listed_by:
        mean = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        return f"unknown {what} {name!r}; {mean}{listed_by} lists them"
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"


def check_table(raw: Any, keys: Mapping[str, Parser | Table], where: str) -> dict[str, Any]:
    """Read a raw TOML table by its schema; raise ConfigError that names file, table and key."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: must be a table, got {raw!r}")
    values = {}
    for key, value in raw.items():
        if key not in keys:
            raise ConfigError(f"{where}: {unknown('key', key, keys)}")
        values[key] = _check_value(value, keys[key], where, key)
    return values


def _check_value(value: Any, field: Parser | Table, where: str, key: str) -> Any:
    if not isinstance(field, Table):
        return field(_figure(value, f"{where} {key}"), f"{where} {key}")
    if field.name_instead and isinstance(plain(value), str):
        return plain(value)
    value = plain(value)
    if not field.many:
        return check_table(value, field.keys, inside(where, key))
    if not isinstance(value, list):
        raise ConfigError(f"{where} {key}: must be a list of tables, got {value!r}")
    return tuple(check_table(item, field.keys, inside(where, f"{key}[{i}]")) for i, item in enumerate(value))


def inside(where: str, key: str) -> str:
    """Name a table inside a table: `mine.toml [nodes.box]` and "pcie" make `mine.toml [nodes.box.pcie]`."""
    return f"{where[:-1]}.{key}]" if where.endswith("]") else f"{where} {key}"


def _figure(value: Any, where: str) -> Any:
    if isinstance(value, dict) and "value" in value:
        for key in value:
            if key not in ("value", "source", "from_memory"):
                raise ConfigError(f"{where}: {unknown('key', key, ('value', 'source', 'from_memory'))}")
    return plain(value)


def plain(value: Any) -> Any:
    """Return the value of `{ value = …, source = … }`, or the value itself."""
    return value["value"] if isinstance(value, dict) and "value" in value else value
