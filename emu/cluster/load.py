"""Make a cluster from what a user writes: a name of the catalogue, a TOML file, or a link in one string.

load_cluster("dgx-a100:2")                                   two nodes
load_cluster("tcp-10g", gpus=4)                              as many hosts as ranks
load_cluster("mine.toml", {"nic.bandwidth": "100 Gb/s", "slow": "3:0.5"})
link_cluster("latency=5 us, bandwidth=12 Gb/s", gpus=4)
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from emu.catalog import Catalog, builtin, read
from emu.catalog.loader import merge
from emu.catalog.schema import KINDS, WORDS, Table, check_table, unknown
from emu.cluster.build import build
from emu.cluster.cluster import Cluster, too_many
from emu.cluster.faults import KINDS as FAULT_KINDS
from emu.cluster.faults import Faults
from emu.cluster.resolve import Resolver
from emu.cluster.spec import ClusterSpec, NodeSpec
from emu.errors import ConfigError

DEFAULT_GPUS = 4  # of a cluster with "any" number, where nobody says how many
# Short settings and what they stand for.
_SHORT = {"nic": "nic.bandwidth", "transport": "cluster.transport", "nodes": "cluster.nodes", "gpu": "node.gpu",
          "fabric": "cluster.fabric", "cpu": "node.cpu"}  # fmt: skip
_PARTS = {
    "node": KINDS["nodes"], "gpu": KINDS["gpus"], "cpu": KINDS["cpus"], "switch": KINDS["switches"],
    "transport": KINDS["transports"], "tcp": KINDS["transports"], "rdma": KINDS["transports"],
    "fabric": KINDS["fabrics"], "cluster": KINDS["clusters"],
}  # fmt: skip
_LINK_KEYS = ("latency", "bandwidth", "gpu", "duplex", "send_overhead", "receive_overhead", "eager", "kind")


def load_cluster(spec: str, settings: Mapping[str, str] | None = None, gpus: int | None = None) -> Cluster:
    """Make a cluster by name (`dgx-a100`, `dgx-a100:2`), from a .toml file, or from a link string.

    `settings` lays values over the description (`nic.bandwidth`, `transport`, `fabric.oversubscription`, `slow`,
    …). `gpus` is how many ranks will run: clusters of "any" size have so many GPUs. Raises ConfigError for an
    unknown name (with the nearest), a bad value, or more ranks than GPUs.
    """
    if "=" in spec and not spec.endswith(".toml"):
        return link_cluster(spec, gpus, settings)
    base, count = _split(spec)
    catalog, table, where = _find(base)
    return _make(spec, catalog, table, where, settings or {}, count, gpus)


def link_cluster(text: str, gpus: int | None = None, settings: Mapping[str, str] | None = None) -> Cluster:
    """Make a cluster of one-GPU hosts on one switch from "latency=5 us, bandwidth=12 Gb/s".

    Both figures are taken as they stand: a lone message takes latency + n / bandwidth. More keys: gpu,
    duplex=half (both directions together), send_overhead, receive_overhead, eager, kind.
    """
    where = f"link {text!r}"
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if equals and "=" in value:
            raise ConfigError(f"{where}: parts are separated by commas, got {part.strip()!r}; write "
                              "'latency=5 us, bandwidth=12 Gb/s'")  # fmt: skip
        if not equals or not value:
            raise ConfigError(f"{where}: must be such as 'latency=5 us, bandwidth=12 Gb/s', got {part.strip()!r}")
        if key not in _LINK_KEYS:
            raise ConfigError(f"{where}: {unknown('key', key, _LINK_KEYS)}")
        if key in given:
            raise ConfigError(f"{where}: names {key!r} twice")
        given[key] = value
    for key in ("latency", "bandwidth"):
        if key not in given:
            raise ConfigError(f"{where}: needs {key!r}, as in 'latency=5 us, bandwidth=12 Gb/s'")
    duplex = given.pop("duplex", "full")
    if duplex not in ("full", "half"):
        raise ConfigError(f"{where} duplex: must be full or half, got {duplex!r}")
    catalog = _link_catalog(given, duplex == "half", where)
    return _make(text, catalog, dict(catalog.tables["clusters"]["link"]), where, settings or {}, None, gpus)


def _link_catalog(given: dict[str, str], half: bool, where: str) -> Catalog:
    """Describe the link's hosts in the catalogue's own words: a NIC beside the GPU, and a transport."""
    base = builtin()
    nic = {"bandwidth": given.pop("bandwidth"), "count": 1, "both_directions": half}
    node: dict[str, Any] = {"base": "pcie4", "gpus": 1, "nic": nic}
    if "gpu" in given:
        node["gpu"] = given.pop("gpu")
    transport = {"kind": "rdma", **given}
    check_table(transport, KINDS["transports"], where)
    check_table({"nic": nic}, KINDS["nodes"], where)
    cluster = {"node": "link-host", "nodes": "any", "transport": "link", "fabric": "one-switch"}
    added: dict[str, dict[str, Any]] = {
        "nodes": {"link-host": node},
        "transports": {"link": transport},
        "clusters": {"link": cluster},
    }
    tables = {kind: {**base.tables[kind], **added.get(kind, {})} for kind in KINDS}
    return Catalog(tables, {("nodes", "link-host"): where, ("transports", "link"): where}, base.sources)


def _split(spec: str) -> tuple[str, int | None]:
    """Split "NAME:N"."""
    base, colon, count = spec.rpartition(":")
    if not colon or not base:
        return spec, None
    if not count.isdigit() or int(count) < 1:
        raise ConfigError(f"cluster {spec!r}: after the colon must be a number of nodes, got {count!r}")
    return base, int(count)


def _find(base: str) -> tuple[Catalog, Mapping[str, Any], str]:
    """Find a cluster's table: in the file, or in the catalogue."""
    if base.endswith(".toml") or Path(base).is_file():
        catalog, cluster = read(base)
        if cluster is None:
            own = [name for kind, name in catalog.files if kind == "clusters"]
            if len(own) != 1:
                raise ConfigError(f"{base}: needs a [cluster] table that says which node, and how many")
            return catalog, catalog.entry("clusters", own[0]).values, f"{base} [clusters.{own[0]}]"
        where = f"{base} [cluster]"
        return catalog, _with_base(catalog, cluster, where), where
    catalog = builtin()
    entry = catalog.entry("clusters", base, "cluster")
    return catalog, entry.values, entry.where


def _with_base(catalog: Catalog, cluster: Mapping[str, Any], where: str) -> dict[str, Any]:
    table = dict(cluster)
    if "base" in table:
        name = catalog.canonical("clusters", str(table.pop("base")))
        if name not in catalog.tables["clusters"]:
            raise ConfigError(f"{where} base: {unknown('cluster', name, catalog.known('clusters'))}")
        table = merge(dict(catalog.tables["clusters"][name]), table)
    return check_table(table, KINDS["clusters"], where)


def _make(
    spec: str,
    catalog: Catalog,
    table: Mapping[str, Any],
    where: str,
    settings: Mapping[str, str],
    count: int | None,
    gpus: int | None,
) -> Cluster:
    catalog, overrides, faults = _read_settings(catalog, settings)
    table = _over_cluster(table, {key[1]: value for key, value in overrides.items() if key[0] == "cluster"})
    described = resolve_cluster(spec, catalog, table, where, overrides, faults, count, gpus)
    size = sum(node.gpus * nodes for node, nodes in described.groups)
    if gpus is not None and gpus > size:
        raise ConfigError(too_many(spec, gpus, size, described.gpus_a_unit))
    for kind, rank in described.faults.ranks():
        if rank >= size:
            raise ConfigError(f"{kind}: the cluster has ranks 0 to {size - 1}, got {rank}")
    return build(described)


def _over_cluster(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over the [cluster] table; another fabric's shape is built of the same switches."""
    merged = {**table, **over}
    old, new = table.get("fabric"), over.get("fabric")
    if isinstance(new, str) and isinstance(old, Mapping) and "switch" in old:
        merged["fabric"] = {"base": new, "switch": old["switch"]}
    return merged


def resolve_cluster(
    spec: str,
    catalog: Catalog,
    table: Mapping[str, Any],
    where: str,
    overrides: Mapping[tuple[str, ...], Any],
    faults: Mapping[str, Any],
    count: int | None,
    gpus: int | None,
) -> ClusterSpec:
    """Resolve a [cluster] table to a description, with its size settled."""
    resolver = Resolver(catalog, overrides)
    groups, unit = _groups(resolver, table, where, count, gpus)
    transport = resolver.transport(table.get("transport", "rdma"), f"{where} transport", between_nodes=True)
    inside = tuple(resolver.transport(name, where) for name in ("nvlink", "pcie"))
    fabric = resolver.fabric(table.get("fabric", "one-switch"), f"{where} fabric")
    declared = Faults.from_table({**table.get("faults", {}), **faults}, f"{where} faults" if not faults else "faults")
    return ClusterSpec(str(table.get("name", spec)), groups, transport, inside, fabric, declared, unit)


def _groups(
    resolver: Resolver, table: Mapping[str, Any], where: str, count: int | None, gpus: int | None
) -> tuple[tuple[tuple[NodeSpec, int], ...], int]:
    """Return the nodes and how many there are of each, and how many GPUs one more unit would add."""
    if "groups" in table:
        if "node" in table or count is not None:
            raise ConfigError(f"{where}: has groups of nodes of its own, so neither 'node' nor a number of nodes fits")
        for i, group in enumerate(table["groups"]):
            for key in ("node", "nodes"):
                if key not in group:
                    raise ConfigError(f"{where} groups[{i}]: needs the key {key!r}")
        groups = tuple((resolver.node(g["node"], None, f"{where} groups"), g["nodes"]) for g in table["groups"])
        return groups, 0
    if "node" not in table:
        raise ConfigError(f"{where}: needs the key 'node': which machine the cluster is made of")
    name = table["node"]
    elastic = resolver.catalog.entry("nodes", name, f"{where} node").values.get("gpus") == "any"
    if elastic:
        return ((resolver.node(name, count or gpus or DEFAULT_GPUS, f"{where} node"), 1),), 1
    node = resolver.node(name, None, f"{where} node")
    nodes = table.get("nodes", 1) if count is None else count
    if nodes == "any":
        nodes = -(-(gpus or DEFAULT_GPUS) // node.gpus)
    return ((node, nodes),), node.gpus


def _read_settings(
    catalog: Catalog, settings: Mapping[str, str]
) -> tuple[Catalog, dict[tuple[str, ...], Any], dict[str, Any]]:
    """Sort settings into values over the description, values over entries of the catalogue, and faults."""
    overrides: dict[tuple[str, ...], Any] = {}
    faults: dict[str, Any] = {}
    for written, value in settings.items():
        key = _SHORT.get(written, written)
        if key in FAULT_KINDS:
            faults[key] = value
        elif key.split(".")[0] in KINDS:
            catalog = _over_entry(catalog, key, value)
        else:
            path = tuple(key.split("."))
            overrides[path] = _parse(path, value, written)
    return catalog, overrides, faults


def known_settings() -> list[str]:
    """Return every setting of a cluster: short ones, faults, and PART.KEY."""
    written = (f"{part}.{key}" for part, keys in _parts().items() for key in keys if key not in WORDS)
    return [*_SHORT, *FAULT_KINDS, *written]


def _parts() -> dict[str, Mapping[str, Any]]:
    tables = {part: KINDS["nodes"][part] for part in ("pcie", "scaleup", "nic")}
    return {**_PARTS, **{k: t.keys for k, t in tables.items() if isinstance(t, Table)}}


def _parse(path: tuple[str, ...], value: Any, written: str) -> Any:
    """Read a setting such as nic.bandwidth by the schema of the part it names."""
    where, parts = f"setting {written}", _parts()
    if path[0] not in parts:
        raise ConfigError(f"setting: {unknown('setting', written, known_settings(), 'emu show settings')}")
    keys = parts[path[0]]
    if len(path) != 2 or path[1] not in keys:
        raise ConfigError(f"{where}: {unknown('key', '.'.join(path[1:]), keys)}")
    field = keys[path[1]]
    if isinstance(field, Table):
        if not (field.name_instead and isinstance(value, str)):
            raise ConfigError(
                f"{where}: {path[1]} is a table; set one of its keys, such as {path[1]}.{min(field.keys)}"
            )
        return value
    return field(value, where)


def _over_entry(catalog: Catalog, key: str, value: Any) -> Catalog:
    """Lay a value over an entry: gpus.a100-sxm4-40.memory="80 GB"."""
    kind, _, rest = key.partition(".")
    name, _, field = rest.rpartition(".")
    entry = catalog.entry(kind, name or rest, f"setting {key}")
    parser = KINDS[kind].get(field)
    if parser is None or isinstance(parser, Table):
        raise ConfigError(f"setting {key}: {unknown('key', field, KINDS[kind])}")
    parser(value, f"setting {key}")
    tables = {k: dict(v) for k, v in catalog.tables.items()}
    tables[kind][entry.name] = merge(dict(tables[kind][entry.name]), {field: value})
    return replace(catalog, tables=tables)
