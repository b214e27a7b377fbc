"""Lay out a node: sockets and their memory, the PCIe tree with trained widths, NVLink, NIC ports."""

from emu.cluster.lanes import train
from emu.cluster.node import Edge, Node
from emu.cluster.parts import Transport
from emu.cluster.spec import LinkSpec, NodeSpec, PcieSwitchSpec, SwitchSpec
from emu.errors import ConfigError

_IDEAL_GPUS_A_SOCKET = 8


def lay_out(spec: NodeSpec, transport: Transport, switch: SwitchSpec) -> Node:
    """Build a node from its description; `switch` is what its NICs are plugged into."""
    node = Node(spec, transport)
    where = f"node {spec.name}"
    _add_sockets(node)
    if spec.pcie.ideal:
        for gpu in range(spec.gpus):
            _hang(node, f"gpu{gpu}", "cpu0", _slower(spec.pcie.link, spec.gpu_pcie), spec.pcie.gpu_lanes)
    else:
        _add_tree(node, where)
    _add_nvlink(node)
    if spec.nic.count:
        _add_ports(node, switch)
        node.gpu_nic = _affinity(node, where)
    return node


def _add_sockets(node: Node) -> None:
    spec, cpu = node.spec, node.spec.cpu
    # An ideal switch takes any number of GPUs; host memory grows with them.
    scale = -(-spec.gpus // _IDEAL_GPUS_A_SOCKET) if spec.pcie.ideal else 1
    for k in range(spec.sockets):
        node.add(f"cpu{k}.memory", "memory", cpu.memory_bytes_per_s * scale)
        if spec.pcie.both_directions_bytes_per_s is not None:
            node.add(f"cpu{k}.root", "pcie", spec.pcie.both_directions_bytes_per_s)
        if spec.sockets > 1:
            node.add(f"cpu{k}.out", "interconnect", cpu.interconnect_bytes_per_s, cpu.interconnect_latency_s)
            node.add(f"cpu{k}.in", "interconnect", cpu.interconnect_bytes_per_s)
            if cpu.interconnect_peer_bytes_per_s < cpu.interconnect_bytes_per_s:
                node.add(f"cpu{k}.peer", "interconnect", cpu.interconnect_peer_bytes_per_s)
    cost = node.transport.host_cpu_s_per_byte
    if cost and spec.nic.count:
        node.add("cores", "cpu", cpu.cores * spec.sockets / cost)


def _add_tree(node: Node, where: str) -> None:
    """Hang switches, GPUs and NICs in the tree; what hangs under a socket shares its lanes."""
    spec, pcie = node.spec, node.spec.pcie
    _check_switches(pcie.switches, spec, where)
    under: dict[str, list[tuple[str, LinkSpec, int]]] = {f"cpu{k}": [] for k in range(spec.sockets)}
    for switch in pcie.switches:
        under.setdefault(switch.name, [])
        under[switch.under].append((switch.name, pcie.link, switch.lanes))
    gpu_link = _slower(pcie.link, spec.gpu_pcie)
    for gpu in range(spec.gpus):
        place = _place("gpus", gpu, spec.gpus, pcie.gpu_sockets, node, where)
        under[place].append((f"gpu{gpu}", gpu_link, min(pcie.gpu_lanes, spec.gpu.pcie_lanes)))
    for nic in range(spec.nic.count):
        place = _place("nics", nic, spec.nic.count, pcie.nic_sockets, node, where)
        under[place].append((f"nic{nic}", pcie.link, spec.nic.lanes))
    for place, devices in under.items():
        widths = [lanes for _, _, lanes in devices]
        if place.startswith("cpu"):
            trained = train([*widths, *pcie.other_lanes], spec.lanes, f"{where} {place}")
            widths = list(trained[: len(devices)])
        for (name, link, _), lanes in zip(devices, widths, strict=True):
            _hang(node, name, place, link, lanes)


def _hang(node: Node, device: str, under: str, link: LinkSpec, lanes: int) -> None:
    """Add a device's two links; a posted write crosses two devices' links in the link's latency."""
    is_switch = not device.startswith(("gpu", "nic"))
    latency_s = node.spec.pcie.switch_latency_s if is_switch else link.latency_s / 2
    up = node.add(f"pcie.{device}.up", "pcie", link.rate(lanes), latency_s)
    down = node.add(f"pcie.{device}.down", "pcie", link.rate(lanes), latency_s)
    node.edges[device] = Edge(under, up, down, lanes)


def _slower(a: LinkSpec, b: LinkSpec) -> LinkSpec:
    """Return the generation that a slot and a card both speak."""
    return a if a.bandwidth_bytes_per_s / a.lanes <= b.bandwidth_bytes_per_s / b.lanes else b


def _place(what: str, index: int, count: int, sockets: tuple[int, ...] | None, node: Node, where: str) -> str:
    """Return what a device hangs under: its switch, the socket named for it, or its share of the sockets."""
    for switch in node.spec.pcie.switches:
        if index in (switch.gpus if what == "gpus" else switch.nics):
            return switch.name
    if sockets is None:
        return f"cpu{index * node.spec.sockets // count}"
    if index >= len(sockets) or sockets[index] >= node.spec.sockets:
        raise ConfigError(
            f"{where} pcie: must name one of {node.spec.sockets} sockets for each of {count} {what}, "
            f"got {list(sockets)}"
        )
    return f"cpu{sockets[index]}"


def _check_switches(switches: tuple[PcieSwitchSpec, ...], spec: NodeSpec, where: str) -> None:
    """Check that each switch hangs under something named before it, and each device hangs once."""
    known = {f"cpu{k}" for k in range(spec.sockets)}
    for switch in switches:
        if switch.name in known or switch.name.startswith(("cpu", "gpu", "nic")):
            raise ConfigError(f"{where} pcie: a switch needs a name of its own, got {switch.name!r}")
        if switch.under not in known:
            raise ConfigError(
                f"{where} pcie: switch {switch.name!r} must hang under a socket or an earlier switch "
                f"({', '.join(sorted(known))}), got {switch.under!r}"
            )
        known.add(switch.name)
    for what in ("gpus", "nics"):  # a number beyond the node's devices is an empty slot
        named = [i for switch in switches for i in getattr(switch, what)]
        if len(set(named)) != len(named):
            raise ConfigError(f"{where} pcie: switches must name each of the {what} once, got {sorted(named)}")


def _add_nvlink(node: Node) -> None:
    scaleup = node.spec.scaleup
    link = scaleup.link
    if link is None:
        return
    if scaleup.kind == "switch":
        rate = link.rate(1) * scaleup.links
        for gpu in range(node.spec.gpus):
            node.add(f"nvlink.gpu{gpu}.up", "nvlink", rate, link.latency_s / 2)
            node.add(f"nvlink.gpu{gpu}.down", "nvlink", rate, link.latency_s / 2)
        return
    for a, b, lines in scaleup.mesh:
        node.add(f"nvlink.gpu{a}.gpu{b}", "nvlink", link.rate(1) * lines, link.latency_s)
        node.add(f"nvlink.gpu{b}.gpu{a}", "nvlink", link.rate(1) * lines, link.latency_s)


def _add_ports(node: Node, switch: SwitchSpec) -> None:
    nic = node.spec.nic
    assert nic.link is not None  # a NicSpec with a count has a link
    rate = nic.link.rate(nic.link.lanes) * node.transport.efficiency
    for i in range(nic.count):
        node.add(f"nic{i}.up", "nic", rate)
        node.add(
            f"nic{i}.down", "nic", rate,
            buffer_bytes=switch.buffer_bytes, ecn_threshold_bytes=switch.ecn_threshold_bytes,
        )  # fmt: skip
        if nic.both_directions:
            node.add(f"nic{i}.both", "nic", rate)


def _affinity(node: Node, where: str) -> tuple[int, ...]:
    """Give each GPU the nearest NIC: under its switch, else its socket, else any; the least used first."""
    spec = node.spec
    if spec.nic.gpu_nics is not None:
        chosen = spec.nic.gpu_nics
        if len(chosen) != spec.gpus or max(chosen) >= spec.nic.count:
            raise ConfigError(
                f"{where} nic gpu_nics: must name one of {spec.nic.count} NICs for each of {spec.gpus} GPUs, "
                f"got {list(chosen)}"
            )
        return chosen
    if spec.pcie.ideal:
        return tuple(gpu * spec.nic.count // spec.gpus for gpu in range(spec.gpus))
    used = [0] * spec.nic.count
    chosen_nics = []
    for gpu in range(spec.gpus):
        best = min(range(spec.nic.count), key=lambda nic: (_distance(node, gpu, nic), used[nic], nic))
        used[best] += 1
        chosen_nics.append(best)
    return tuple(chosen_nics)


def _distance(node: Node, gpu: int, nic: int) -> int:
    a, b = f"gpu{gpu}", f"nic{nic}"
    if node.meet(a, b) is not None:
        return 0
    return 1 if node.socket(a) == node.socket(b) else 2
