"""emu runs distributed-training programs on emulated GPUs: the bytes are real, the time is emulated.

    import emu

    def main(gpu):
        grad = gpu.full(25_000_000, gpu.rank, purpose="gradients")
        emu.ring_all_reduce(gpu.comm, grad)

    run = emu.run(main, cluster="dgx-a100", ranks=8)
    print(run.timeline.table())

Names are imported when they are used, so `import emu` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emu.cluster import Cluster, link_cluster, load_cluster
    from emu.comm import Comm
    from emu.errors import EmuError
    from emu.gpu import Cost, Gpu
    from emu.program import Run, replay, run
    from emu.timeline import Timeline
    from emu.trace import Trace

_WHERE = {
    "Cluster": "emu.cluster", "link_cluster": "emu.cluster", "load_cluster": "emu.cluster",
    "Comm": "emu.comm", "Cost": "emu.gpu", "Gpu": "emu.gpu", "EmuError": "emu.errors",
    "Run": "emu.program", "replay": "emu.program", "run": "emu.program",
    "Timeline": "emu.timeline", "Trace": "emu.trace",
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce",
                     "reduce_scatter", "scatter"), "emu.collectives"),
}  # fmt: skip

__all__ = [
    "Cluster", "Comm", "Cost", "EmuError", "Gpu", "Run", "Timeline", "Trace",
    "link_cluster", "load_cluster", "replay", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name, or an algorithm such as `ring_all_reduce`, when it is first used."""
    if name in _WHERE:
        found = getattr(importlib.import_module(_WHERE[name]), name)
    elif not name.startswith("_") and "_" in name:
        found = _algorithm(name)
    else:
        raise AttributeError(f"module 'emu' has no attribute {name!r}")
    globals()[name] = found
    return found


def _algorithm(name: str) -> Any:
    from emu.collectives.table import PLACED, TABLE, UNEVEN

    known: list[tuple[str, Any]] = [*TABLE.items(), *UNEVEN.items(), *PLACED.items()]
    for operation, algorithms in known:
        algorithm = algorithms.get(name.removesuffix(f"_{operation}"))
        if name.endswith(f"_{operation}") and algorithm is not None:
            return getattr(algorithm, "function", algorithm)
    raise AttributeError(f"module 'emu' has no attribute {name!r}")
