"""The shape of a fabric from what a user gives: ports down and up, ratios, tiers. Building it is another matter."""

from collections.abc import Mapping
from typing import Any

from emu.cluster.spec import FabricSpec, SwitchSpec
from emu.errors import ConfigError

_SHAPE = ("down", "up", "spines", "k", "oversubscription", "uplink", "cross_rail", "routing", "hop_latency", "seed")
_NOT_FOR = {
    "switch": _SHAPE,
    "leaf-spine": ("k", "cross_rail"),
    "rail": ("k",),
    "fat-tree": ("down", "up", "spines", "cross_rail", "ports"),
}


def read_fabric(values: Mapping[str, Any], switch: SwitchSpec, where: str) -> FabricSpec:
    """Return a fabric's description; every leaf's ports are settled, and what does not fit its kind is an error."""
    kind = values.get("kind", "switch")
    for key in _NOT_FOR[kind]:
        if key in values and values[key] != 1.0:  # 1:1 fits everywhere
            hint = "; choose another kind, such as leaf-spine" if kind == "switch" else ""
            raise ConfigError(f"{where}: {key!r} is not for a fabric of kind {kind!r}{hint}")
    ratio = values.get("oversubscription", 1.0)
    down = up = None
    if kind in ("leaf-spine", "rail"):
        down, up = _leaf(values, switch, where)
        ratio = down / up
    elif kind == "fat-tree":
        down, up = _edge(values.get("k"), ratio, where)
    spines = values.get("spines")
    if spines is not None and up is not None and up % spines:
        raise ConfigError(f"{where}: uplinks must divide evenly over the spines, got {up} over {spines}")
    return FabricSpec(
        kind,
        switch,
        values.get("ports"),
        down,
        up,
        spines,
        values.get("k"),
        ratio,
        values.get("routing", "ecmp"),
        values.get("seed", 0),
        values.get("uplink"),
        values.get("cross_rail", "spine"),
        values.get("hop_latency"),
    )


def _leaf(values: Mapping[str, Any], switch: SwitchSpec, where: str) -> tuple[int, int]:
    """Work out a leaf's ports down and up: as given, or as many as the switch's ports allow at the ratio."""
    down, up, ratio = values.get("down"), values.get("up"), values.get("oversubscription")
    ports = values.get("ports", switch.ports)
    if down is None:
        if ports is None:
            raise ConfigError(f"{where}: a leaf needs 'down', its ports towards the hosts, or 'ports'")
        up = int(ports // ((ratio or 1.0) + 1)) if up is None else up
        down = up * (ratio or 1.0) if ratio else ports - up
        if down != int(down) or down < 1 or up < 1:
            raise ConfigError(f"{where}: {ports} ports at {ratio:g}:1 leave {up} up and {down:g} down; give 'down'")
    elif ratio is not None:
        exact = down / ratio
        if exact != int(exact) or (up is not None and up != exact):
            raise ConfigError(
                f"{where}: {down} ports down at {ratio:g}:1 need {exact:g} uplinks; {ratio:g} must divide 'down'"
            )
        up = int(exact)
    down, up = int(down), int(up or down)
    if ports is not None and down + up > ports:
        name = f"the switch {switch.name}" if "ports" not in values else "a leaf"
        raise ConfigError(
            f"{where}: {name} has {ports} ports, got {down} down and {up} up; give fewer, or fabric.ports"
        )
    return down, up


def _edge(k: int | None, ratio: float, where: str) -> tuple[int, int]:
    if k is None or k % 2:
        raise ConfigError(f"{where}: a fat tree needs an even number of ports 'k', got {k}")
    up = k / 2 / ratio
    if up != int(up) or up < 1:
        raise ConfigError(f"{where}: {k // 2} ports down divided by {ratio:g} must be whole, got {up:g} uplinks")
    return k // 2, int(up)
