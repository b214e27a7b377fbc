"""The parts that a cluster is made of: directed links, routes over them, transports, GPUs. Plain frozen data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from emu.catalog.schema import unknown
from emu.errors import ConfigError
from emu.units import format_bandwidth, format_time

# Words for a dtype in the catalogue and in a trace.
DTYPE_OF = {
    "fp64": "float64", "fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16",
    "fp8": "float8", "fp4": "float4", "int8": "int8",
}  # fmt: skip
_WITHOUT_UNIT = ("int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex128")
_REAL_PART = {"complex64": "float32", "complex128": "float64"}  # complex arithmetic is counted in real FLOPs


@dataclass(frozen=True, slots=True)
class Link:
    """One directed link.

    The bandwidth is payload: the wire's rate times its efficiency. A medium that both directions share (host
    memory, a half-duplex port, the host CPU under TCP) is one link that stands in the routes of both.
    `buffer_bytes` is what the switch port in front of it can hold; infinite where the port never drops.
    """

    name: str
    kind: str  # nvlink, pcie, memory, interconnect, cpu, nic, fabric
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    buffer_bytes: float = math.inf
    ecn_threshold_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class LinkChange:
    """From `time_s` on a link carries `factor` of its bandwidth."""

    time_s: float
    link: int
    factor: float


@dataclass(frozen=True, slots=True)
class LinkFlap:
    """A link that carries nothing for `down_s` at the beginning of every `period_s`, from `start_s` on."""

    link: int
    period_s: float
    down_s: float
    start_s: float


@dataclass(frozen=True, slots=True)
class Route:
    """The path of a message or copy: indices into the cluster's links, in order, and its whole latency.

    `cap_bytes_per_s` bounds one flow whatever the links could carry, as one core bounds a TCP flow.
    """

    links: tuple[int, ...]
    latency_s: float
    transport: str
    cap_bytes_per_s: float = math.inf


def stretched(by_size: Sequence[tuple[float, float]], count: float) -> float:
    """Return as how many bytes `count` count where a byte takes longer in some sizes than in others.

    `by_size` gives sizes, and how many times as long each byte of them takes; what a size takes in all is linear
    between two of them, and a byte beyond the last, or below the first, takes as long as there.

    >>> [stretched([(1000, 1), (3000, 2)], count) for count in (500, 1000, 2000, 3000, 4000)]
    [500.0, 1000.0, 3500.0, 6000.0, 8000.0]
    """
    if not by_size:
        return float(count)
    (size, times), before = by_size[0], (0.0, 0.0)
    for size, times in by_size:
        if count <= size:
            break
        before = (size, size * times)
    else:
        return float(count * times)
    return before[1] + (count - before[0]) * (size * times - before[1]) / (size - before[0])


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """What a lone message takes on a route: alpha_s + n / bandwidth_bytes_per_s."""

    alpha_s: float
    bandwidth_bytes_per_s: float
    by_size: tuple[tuple[float, float], ...] = ()

    def time_s(self, count: float) -> float:
        """Return the time of a lone message of so many bytes."""
        return self.alpha_s + stretched(self.by_size, count) / self.bandwidth_bytes_per_s

    def __str__(self) -> str:
        return f"{format_time(self.alpha_s)} + n / ({format_bandwidth(self.bandwidth_bytes_per_s)})"


@dataclass(frozen=True)
class Transport:
    """How bytes ride a path.

    `latency_s` is one way, memory to memory across one switch, beyond the overheads. Header efficiency follows
    from the MTU. CPU time (`cpu_s_per_packet`, `cpu_s_per_byte`) is charged where it is not zero: one flow then
    has `sockets` cores at most, and all flows of a host share its cores. `nccl_algorithms` and `nccl_protocols` are
    what the transport leaves of NCCL's choices; empty, all. `nccl_buffer_bytes` is a channel's, `nccl_chunk_bytes` the
    least that a tree's data are cut into. `by_size` tells how a message's size makes its bytes take longer on the
    links, see `stretched`: out of caches, for example.
    """

    name: str
    kind: str
    latency_s: float = 0.0
    send_overhead_s: float = 0.0
    receive_overhead_s: float = 0.0
    eager_bytes: int = 0
    mtu_bytes: int | None = None
    header_bytes: int = 0
    frame_bytes: int = 0
    wire_efficiency: float = 1.0
    cpu_s_per_packet: float = 0.0
    cpu_s_per_byte: float = 0.0
    offload: bool = True
    segment_bytes: int = 65536
    sockets: int = 1
    gpudirect: bool = True
    initial_window_segments: int = 10
    window_limit_bytes: float = math.inf
    rto_min_s: float = 0.2
    rto_initial_s: float = 1.0
    rto_max_s: float = 120.0
    congestion: str = "reno"
    dctcp_gain: float = 0.0625
    pfc: bool = False
    nccl_algorithms: tuple[str, ...] = ()
    nccl_protocols: tuple[str, ...] = ()
    nccl_buffer_bytes: int = 4 << 20
    nccl_chunk_bytes: int = 0
    by_size: tuple[tuple[float, float], ...] = ()

    @property
    def payload_bytes(self) -> int:
        """Payload of a full packet: TCP's maximum segment size."""
        return (self.mtu_bytes or 0) - self.header_bytes

    @cached_property
    def efficiency(self) -> float:
        """Payload over wire bytes of a full packet."""
        if self.mtu_bytes is None:
            return self.wire_efficiency
        return self.wire_efficiency * self.payload_bytes / (self.mtu_bytes + self.frame_bytes)

    @property
    def host_cpu_s_per_byte(self) -> float:
        """CPU time of one host for a byte of payload, its share of the packet's cost included."""
        packet = self.segment_bytes if self.offload else self.payload_bytes
        return self.cpu_s_per_byte + (self.cpu_s_per_packet / packet if self.cpu_s_per_packet else 0.0)

    @property
    def core_bytes_per_s(self) -> float:
        """What one core can move; infinite where the transport takes no CPU time."""
        cost = self.host_cpu_s_per_byte
        return 1 / cost if cost else math.inf

    @cached_property
    def flow_bytes_per_s(self) -> float:
        """What the cores that one flow may use can move; infinite where the transport takes no CPU time."""
        return self.core_bytes_per_s * self.sockets

    @property
    def staged(self) -> bool:
        """Whether bytes pass through host memory on their way between GPU and NIC."""
        return not self.gpudirect


@dataclass(frozen=True)
class GpuSpec:
    """A GPU: dense peaks by dtype in FLOP/s, memory, and what kernels achieve of both.

    `memory_by_size` tells how the bytes that a kernel touches make each take longer, see `stretched`.
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    flops_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    launch_overhead_s: float = 0.0
    scaleup: str | None = None
    scaleup_links: int = 0
    pcie: str = "pcie4"
    pcie_lanes: int = 16
    power_w: float | None = None
    memory_by_size: tuple[tuple[float, float], ...] = ()

    def peak(self, dtype: str) -> float:
        """Return the dense peak for a dtype, in FLOP/s.

        What the GPU has no unit for runs as float32: bfloat16 or tf32 on a GPU from before them, integers.
        """
        dtype = _REAL_PART.get(dtype, dtype)
        kind = "float8" if dtype.startswith("float8") else dtype  # float8 has several layouts, at one rate
        if kind in self.peak_flops:
            return self.peak_flops[kind]
        if kind in DTYPE_OF.values() or kind in _WITHOUT_UNIT:
            return self.peak_flops["float32"]
        known = sorted({*DTYPE_OF.values(), *_WITHOUT_UNIT})
        raise ConfigError(f"GPU {self.name}: {unknown('dtype', dtype, known)}")
