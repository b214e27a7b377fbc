"""Write what was measured as a cluster file that `--cluster` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emu.calibration.fit import Fit, fit_sizes
from emu.calibration.measure import Measured, Pair
from emu.calibration.nccl_log import Log

SHARED = 0.9  # below this part of what its links could carry, ranks share something else too


@dataclass(frozen=True)
class Model:
    """Fitted links: within a host, between hosts; what all ranks of a host can send together (0: no limit).

    `memory` are sums: the time of a call, bytes/s that they touch, and what their size makes of it.
    """

    ranks_a_host: int
    hosts: int
    inside: Fit | None
    between: Fit | None
    together_bytes_per_s: float
    memory: Fit
    flops: float


def fit(measured: Measured) -> Model:
    """Fit link models to exchanges, which is what collectives do; what all do at once is a limit of its own.

    One direction alone may carry more than its part of an exchange: the link has its bandwidth then, and both
    directions a limit together.
    """
    inside = _fit(measured.inside, "within a host")
    between = _fit(measured.between, "between hosts")
    together = 0.0
    m = len(measured.hosts[0])
    if measured.inside is not None and inside is not None:
        alone = fit_sizes(measured.inside.one_way, "one direction")
        exchanged = inside.bandwidth_bytes_per_s
        wide = replace(inside, bandwidth_bytes_per_s=max(alone.bandwidth_bytes_per_s, exchanged))
        limit = 2 * exchanged if m == 2 else measured.all_at_once_bytes_per_s
        if limit < SHARED * m * wide.bandwidth_bytes_per_s:
            inside, together = wide, limit
    pair = measured.inside or measured.between
    assert pair is not None
    memory = fit_sizes(pair.sums, "sums")
    return Model(m, len(measured.hosts), inside, between, together, memory, measured.flops)


def _fit(pair: Pair | None, where: str) -> Fit | None:
    return fit_sizes(pair.both_ways, where) if pair is not None else None


def cluster_file(model: Model, title: str) -> str:
    """Return the text of a cluster file."""
    m = model.ranks_a_host
    lane = model.inside or model.between
    assert lane is not None
    parts = [
        f"# {title}",
        "# Written by `emu calibrate`; times by `--profile mpi`, which counts sums and overheads.",
        _table("gpus.here", {
            "fp32": f"{model.flops / 1e9:.4g} GFLOPS", "memory": "64 GB",
            "memory_bandwidth": _rate(model.memory.bandwidth_bytes_per_s), "pcie": "here",
            "launch_overhead": _time(model.memory.latency_s), "memory_by_size": _sizes(model.memory),
        }),
        _table("cpus.here", {"cores": 1, "lanes": 16 * (m + 1), "memory_bandwidth": "1000 GB/s"}),
        _table("links.here", {
            "medium": "pcie", "bandwidth": _rate(lane.bandwidth_bytes_per_s), "lanes": 16,
            "latency": _time(model.inside.latency_s if model.inside else 0),
        }),
        _table("transports.pcie", {"by_size": _sizes(model.inside)}) if model.inside else "",
        _table("nodes.here", {"gpu": "here", "gpus": m, "cpu": "here"}),
        _table("nodes.here.pcie", {"link": "here"} | (
            {"both_directions": _rate(model.together_bytes_per_s)} if model.together_bytes_per_s else {}
        )),
        _table("nodes.here.nic", {"bandwidth": _rate(model.between.bandwidth_bytes_per_s), "count": 1})
        if model.between else "",
        _table("transports.here", {
            "kind": "rdma", "latency": _time(model.between.latency_s if model.between else 0), "eager": "4 KiB",
            **({"by_size": _sizes(model.between)} if model.between else {}),
        }),
        _table("cluster", {"node": "here", "nodes": model.hosts, "transport": "here", "fabric": "one-switch"}),
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _sizes(fitted: Fit) -> list[list[object]]:
    return [[f"{size} B", times] for size, times in fitted.by_size]


def log_cluster_file(log: Log, title: str) -> str:
    """Return the cluster file of a link fitted to a log: as many GPUs as asked for, each with a port of its own."""
    fitted = log.fit()
    return "\n".join([
        f"# {title}",
        "# Written by `emu calibrate --nccl-log`.",
        _table("nodes.here", {"base": "pcie5", "gpus": 1}),
        _table("nodes.here.nic", {"bandwidth": _rate(fitted.bandwidth_bytes_per_s), "count": 1}),
        _table("transports.here", {"kind": "rdma", "latency": _time(fitted.latency_s)}),
        _table("cluster", {"node": "here", "nodes": "any", "transport": "here", "fabric": "one-switch"}),
    ])  # fmt: skip


def _table(name: str, values: Mapping[str, object]) -> str:
    told = {key: f'"{value}"' if isinstance(value, str) else value for key, value in values.items()}
    return "\n".join([f"\n[{name}]", *(f"{key} = {value}" for key, value in told.items())])


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.6g} GB/s"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.6g} us"
