"""A cluster as a drawing in text: each kind of node with its PCIe tree and GPU fabric, the switches, some routes."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from emu.cluster import Cluster, Link
from emu.cluster.faults import Faults
from emu.cluster.node import Node
from emu.units import format_bandwidth, format_bytes, format_flops, format_time

_SHOWN_SOCKETS = 2
_SHOWN_LEAVES = 8
_NEAR_GPUS = 32  # so many are looked at for a route that costs something else


def draw_cluster(cluster: Cluster) -> str:
    """Return the drawing, lines of at most about 110 characters, ending in a newline."""
    parts = [_title(cluster)]
    parts += [_node(cluster, first, count) for first, count in _alike(cluster)]
    if cluster.nodes > 1:
        parts.append(_fabric(cluster))
    parts.append(_routes(cluster))
    faults = _faults(cluster.faults)
    if faults:
        parts.append(["faults", *(f"  {line}" for line in faults)])
    return "\n".join("\n".join(part) + "\n" for part in parts)


def _title(cluster: Cluster) -> list[str]:
    nodes = f"{cluster.nodes} nodes" if cluster.nodes > 1 else "1 node"
    gpus = f"{cluster.size} GPUs" if cluster.size > 1 else "1 GPU"
    lines = [f"{cluster.name}: {nodes}, {gpus}"]
    if cluster.nodes > 1:
        transport = cluster.spec.transport
        mtu = f", MTU {transport.mtu_bytes} B: {transport.efficiency:.1%} payload" if transport.mtu_bytes else ""
        lines.append(f"between nodes: {transport.name} ({transport.kind}), {format_time(transport.latency_s)}{mtu}")
    return lines


def _alike(cluster: Cluster) -> list[tuple[int, int]]:
    """Return (first node, how many) for each run of nodes of one kind."""
    runs = []
    for _, group in groupby(range(cluster.nodes), key=lambda number: id(cluster.node(number))):
        numbers = list(group)
        runs.append((numbers[0], len(numbers)))
    return runs


def _node(cluster: Cluster, first: int, count: int) -> list[str]:
    node = cluster.node(first)
    spec = node.spec
    name = f"node{first}" if count == 1 else f"node{first} to node{first + count - 1}, each"
    peaks = ", ".join(
        f"{dtype} {format_flops(spec.gpu.peak_flops[dtype])}"
        for dtype in ("float32", "bfloat16")
        if dtype in spec.gpu.peak_flops
    )
    memory = f"{_decimal(spec.gpu.memory_bytes)} at {format_bandwidth(spec.gpu.memory_bytes_per_s)}"
    cpu = spec.cpu
    lines = [
        f"{name}: {spec.name}",
        f"  {spec.gpus} x GPU {spec.gpu.name}: {memory}, {peaks}",
        f"  {spec.sockets} x CPU {cpu.name}: {cpu.cores} cores, {spec.lanes} PCIe lanes, "
        f"memory {format_bandwidth(_rate(node, 'cpu0.memory'))}"
        + (f"; {_decimal(spec.memory_bytes)} of host memory" if spec.memory_bytes else ""),
    ]
    return [*lines, *(f"  {line}" for line in (*_pcie(node), *_scaleup(node), *_tcp(node)))]


def _decimal(count: int) -> str:
    return f"{count / 1e9:g} GB" if count % 10**8 == 0 else format_bytes(count)


def _rate(node: Node, link: str) -> float:
    return node.links[node.link(link)].bandwidth_bytes_per_s


def _pcie(node: Node) -> list[str]:
    spec = node.spec
    if spec.pcie.ideal:
        rate = format_bandwidth(_rate(node, "pcie.gpu0.up"))
        lines = [f"one {spec.pcie.link.name} switch that never blocks: {_span('gpu', range(spec.gpus))} at {rate} each"]
        nics = [f"nic{i}" for i in range(spec.nic.count)]
        return lines + [f"beside it: {_device(node, nic)}" for nic in nics]
    lines = [f"{spec.pcie.link.name}, {_peer(node)}"]
    for k in range(min(spec.sockets, _SHOWN_SOCKETS)):
        lines.append(f"cpu{k}")
        lines += _tree(node, f"cpu{k}", "")
    if spec.sockets > _SHOWN_SOCKETS:
        lines.append(f"… {spec.sockets - _SHOWN_SOCKETS} more CPUs like these")
    if spec.sockets > 1:
        peer = f", {format_bandwidth(_rate(node, 'cpu0.peer'))} from GPU to GPU" if "cpu0.peer" in node.numbers else ""
        lines.append(f"cpu0 ◀─▶ cpu1: {format_bandwidth(_rate(node, 'cpu0.out'))}{peer}")
    return lines


def _peer(node: Node) -> str:
    reach = {
        "all": "GPUs read each other everywhere",
        "socket": "GPUs read each other within a socket, else through host memory",
        "switch": "GPUs read each other below one switch, else through host memory",
        "none": "GPUs reach each other through host memory",
    }
    return reach[node.spec.pcie.peer]


def _tree(node: Node, place: str, indent: str) -> list[str]:
    """Draw what hangs under a socket or a switch; devices that look alike share a line."""
    below = [device for device, edge in node.edges.items() if edge.under == place]
    runs = [list(group) for _, group in groupby(below, key=lambda device: _look(node, device))]
    lines = []
    for i, run in enumerate(runs):
        last = i == len(runs) - 1
        text = _device(node, run[0]) if len(run) == 1 else f"{_names(run)}  {_look(node, run[0])} each"
        lines.append(f"{indent} {'└─' if last else '├─'} {text}")
        lines += _tree(node, run[0], f"{indent} {'  ' if last else '│ '}")
    return lines


def _look(node: Node, device: str) -> str:
    if not device.startswith(("gpu", "nic")):
        return f"switch {device}"  # each switch has a line of its own
    width = f"x{node.lanes(device)} {format_bandwidth(_rate(node, f'pcie.{device}.up'))}"
    return f"{width}, port {_port(node, device)}" if device.startswith("nic") else width


def _device(node: Node, device: str) -> str:
    if device.startswith("nic") and device not in node.edges:
        return f"{device}  port {_port(node, device)}"
    if device.startswith(("gpu", "nic")):
        return f"{device}  {_look(node, device)}"
    return f"{device}  x{node.lanes(device)} uplink {format_bandwidth(_rate(node, f'pcie.{device}.up'))}"


def _port(node: Node, nic: str) -> str:
    link = node.spec.nic.link
    wire = format_bandwidth(link.rate(link.lanes), bits=True) if link else ""
    return f"{wire} ({format_bandwidth(_rate(node, f'{nic}.up'))} payload)"


def _names(devices: Sequence[str]) -> str:
    kind = devices[0].rstrip("0123456789")
    return _span(kind, [int(device.removeprefix(kind)) for device in devices])


def _span(kind: str, numbers: Iterable[int]) -> str:
    """Name devices: gpu0, gpu1; gpu0 to gpu7."""
    found = list(numbers)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{kind}{found[0]} to {kind}{found[-1]}"
    return ", ".join(f"{kind}{i}" for i in found)


def _scaleup(node: Node) -> list[str]:
    scaleup = node.spec.scaleup
    if scaleup.link is None:
        return []
    if scaleup.kind == "switch":
        chips = f"{scaleup.switches} NVSwitches" if scaleup.switches else "one NVSwitch"
        reduces = ", which reduce in the switch" if scaleup.reduces else ""
        rate = format_bandwidth(_rate(node, "nvlink.gpu0.up"))
        gpus = _span("gpu", range(node.spec.gpus))
        return [f"{chips}{reduces}: {gpus} by {scaleup.links} x {scaleup.link.name}, {rate} each"]
    line = format_bandwidth(scaleup.link.rate(1))
    return [f"{scaleup.link.name}, {line} a line; lines between GPUs:", *_matrix(node)]


def _matrix(node: Node) -> list[str]:
    lines_of = {(a, b): n for a, b, n in node.spec.scaleup.mesh}
    lines_of |= {(b, a): n for (a, b), n in lines_of.items()}
    gpus = range(node.spec.gpus)
    rows = ["       " + "".join(f"{gpu:>3}" for gpu in gpus)]
    for a in gpus:
        cells = "".join(f"{'-' if a == b else lines_of.get((a, b), '.'):>3}" for b in gpus)
        rows.append(f"  {f'gpu{a}':<5}{cells}")
    return rows


def _tcp(node: Node) -> list[str]:
    transport = node.transport
    if "cores" not in node.numbers:
        return []
    offload = "with segmentation offload" if transport.offload else "without segmentation offload"
    flow = format_bandwidth(transport.core_bytes_per_s * transport.sockets)
    return [
        f"{transport.name} {offload}: {flow} a flow ({transport.sockets} of the cores), "
        f"{format_bandwidth(_rate(node, 'cores'))} in all"
    ]


def _fabric(cluster: Cluster) -> list[str]:
    spec = cluster.spec.fabric
    lines = [f"fabric: {cluster.fabric_summary()}"]
    between = [link for link in cluster.links if link.kind == "fabric"]
    if between:
        lines.append(f"  {len(between)} links between switches, {_rates(between)}")
        lines.append(f"  each switch beyond the first adds {format_time(between[0].latency_s)} ({spec.switch.name})")
    if spec.switch.buffer_bytes != float("inf"):
        lines.append(f"  ports of {spec.switch.name} hold {format_bytes(spec.switch.buffer_bytes)}")
    return [*lines, *_leaves(cluster)]


def _rates(links: Sequence[Link]) -> str:
    rates = sorted({link.bandwidth_bytes_per_s for link in links})
    return " and ".join(format_bandwidth(rate) for rate in rates)


def _leaves(cluster: Cluster) -> list[str]:
    """Draw the first switches with the NICs on them."""
    if cluster.spec.fabric.kind == "switch":
        return []
    below: dict[int, list[str]] = {}
    for rank in range(cluster.size):
        name = f"node{cluster.node_of(rank)}.nic{cluster.nic_of(rank)}"
        names = below.setdefault(cluster.leaf_of(rank), [])
        if name not in names:
            names.append(name)
    kind = "edge" if cluster.spec.fabric.kind == "fat-tree" else "leaf"
    shown = sorted(below)[:_SHOWN_LEAVES]
    lines = [f"  {kind}{leaf} ─ {_ends(below[leaf])}" for leaf in shown]
    more = len(below) - len(shown)
    return lines + ([f"  … {more} more"] if more else [])


def _ends(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]} ({len(names)} ports)"


def _routes(cluster: Cluster) -> list[str]:
    """Show one route of each kind: within the node, to the next node, to the farthest, and the host's copies."""
    lines = ["a lone message of n bytes takes, overheads apart"]
    seen: set[tuple[str, str]] = set()
    next_node = [cluster.ranks_of(1)[0]] if cluster.nodes > 1 else []
    for dst in sorted({*range(1, min(cluster.size, _NEAR_GPUS)), *next_node, cluster.size - 1} - {0}):
        if cluster.node_of(dst) != cluster.node_of(0) and cluster.nic_of(0) is None:
            lines.append(f"  gpu0 ─▶ gpu{dst}  no NIC: out of reach")
            break
        route, form = cluster.route(0, dst), str(cluster.closed_form(0, dst))
        if (route.transport, form) not in seen:
            seen.add((route.transport, form))
            lines.append(f"  gpu0 ─▶ gpu{dst}  {route.transport:<10}  {form}")
    copy = cluster.host_route(0, "h2d")
    rate = min(cluster.links[i].bandwidth_bytes_per_s for i in copy.links)
    lines.append(
        f"  host ─▶ gpu0  {copy.transport:<10}  {format_time(copy.latency_s)} + n / ({format_bandwidth(rate)})"
    )
    return lines


def _faults(faults: Faults) -> list[str]:
    lines = []
    for slow in faults.slow:
        ranks = f"rank {slow.first}" if slow.first == slow.last else f"ranks {slow.first} to {slow.last}"
        lines.append(f"{ranks} at {slow.factor:g} of its speed")
    for part in faults.degradations:
        until = "" if part.end_s == float("inf") else f" to {format_time(part.end_s)}"
        when = "" if part.permanent else f" from {format_time(part.start_s)}{until}"
        lines.append(f"{part.link} at {part.factor:g} of its bandwidth{when}")
    for flap in faults.flaps:
        lines.append(f"{flap.link} down {format_time(flap.down_s)} of every {format_time(flap.period_s)}")
    for pause in faults.pauses:
        lines.append(f"rank {pause.rank} pauses at {format_time(pause.at_s)} for {format_time(pause.duration_s)}")
    for death in faults.deaths:
        lines.append(f"rank {death.rank} dies at {format_time(death.at_s)}")
    if faults.jitter:
        noise = faults.jitter
        lines.append(f"jitter: {noise.compute:.3g} of computation, {noise.latency:.3g} of latency, seed {noise.seed}")
    return lines
