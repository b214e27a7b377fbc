"""Published runs of collectives on more systems: no aims, no constant is from here. Sizes in bytes, times in us.

`seen` says which part of the model was changed with a run in sight; the others were timed and left as they came out.
"""

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True)
class Published:
    """A run: on what, by whom it was published, and what it took. `cluster` and `settings` describe the system."""

    system: str
    cluster: str
    collective: str
    source: str
    times_us: tuple[tuple[int, float], ...]
    settings: tuple[tuple[str, str], ...] = ()
    ranks: int = 16
    profile: str = "nccl"
    seen: str = ""


RUNS = (
    Published(
        "2 x 8 V100, DGX-1, 4 EDR", "dgx-1:2", "all_reduce",
        "NVIDIA DeepOps: network operator guide, 2021",
        ((1024, 38.84), (65536, 62.27), (MIB, 127.9), (4 * MIB, 228.7), (16 * MIB, 751.9), (64 * MIB, 2677),
         (256 * MIB, 10540), (1024 * MIB, 41998)),
        seen="rings through mesh nodes, segments of trees, what trees have inside a mesh",
    ),
    Published(
        "2 x 8 A100, 16 x 100 Gb/s RoCE", "dgx-a100:2", "all_reduce",
        "Oracle: RDMA GPU workloads on OKE, 2024",
        ((1024, 41.97), (65536, 51.69), (MIB, 85.58), (4 * MIB, 127.0), (16 * MIB, 282.7), (64 * MIB, 821.7),
         (256 * MIB, 3042.7), (1024 * MIB, 9187.8), (8192 * MIB, 67689)),
        (("transport", "roce"),), seen="search of channels, segments of trees",
    ),
    Published(
        "2 x 8 A100, the same with NCCL 2.29", "dgx-a100:2", "all_reduce",
        "Oracle: Slurm on OKE, nccl-tests, 2026",
        ((1024 * MIB, 10908.0), (2048 * MIB, 21500.1), (4096 * MIB, 42721.7)),
        (("transport", "roce"),), seen="search of channels",
    ),
    Published(
        "2 x 8 A100, 4 HDR", str(Path(__file__).with_name("four_nics.toml")), "all_reduce",
        "NVIDIA/nccl-tests issues 119 and 252: rings",
        ((127926280, 2560.7), (1024 * MIB, 20079)),
    ),
    Published(
        "2 x 8 H100, 16 x 200 Gb/s RoCE", "dgx-h100:2", "all_reduce",
        "Oracle Japan: NCCL tests on BM.GPU.H100.8, 2024",
        ((1024 * MIB, 4511.2), (2048 * MIB, 8825.9), (4096 * MIB, 17437), (8192 * MIB, 34719), (16384 * MIB, 69338)),
        (("transport", "roce"),), seen="sums in switches between nodes",
    ),
    Published(
        "2 x 8 B200, GCP A4", "b200:2", "all_reduce",
        "dstack: GCP A4 example, 2025",
        ((8 * MIB, 156.9), (16 * MIB, 196.3), (32 * MIB, 258.5), (64 * MIB, 369.4), (128 * MIB, 638.5),
         (256 * MIB, 940.3), (512 * MIB, 1695.2), (1024 * MIB, 3229.9), (2048 * MIB, 6107.7), (4096 * MIB, 11952),
         (8192 * MIB, 23563)),
        (("transport", "roce"),),
    ),
    Published(
        "2 x 8 H100, GCP A3 Mega", "a3-mega:2", "all_gather",
        "dstack: A3 Mega clusters example, 2024",
        ((8 * MIB, 394.2), (16 * MIB, 437.8), (32 * MIB, 479.5), (64 * MIB, 755.8), (128 * MIB, 1125.3),
         (256 * MIB, 1741.3), (512 * MIB, 2854.9), (1024 * MIB, 5536.1), (2048 * MIB, 10853), (4096 * MIB, 21491),
         (8192 * MIB, 42770)),
    ),
    Published(
        "8 H100", "dgx-h100", "all_reduce",
        "a published nccl-tests run of 8 H100, 256 MiB to 2 GiB",
        ((256 * MIB, 1119.8), (512 * MIB, 2157.5), (1024 * MIB, 4027.3), (2048 * MIB, 7983.5)), ranks=8,
    ),
    Published(
        "8 H800", "dgx-h100", "broadcast",
        "a published nccl-tests log of an Inspur NF5688M7",
        ((1024, 25.57), (65536, 26.72), (MIB, 43.4), (4 * MIB, 45.13), (16 * MIB, 123.0), (64 * MIB, 430.6),
         (256 * MIB, 1649.9), (1024 * MIB, 6520.1)),
        (("scaleup.links", "8"),), ranks=8, seen="steps of a chain",
    ),
    Published(
        "8 A100", "dgx-a100", "sendrecv",
        "published notes on nccl-tests: sendrecv on 8 A100",
        ((256 * MIB, 1423.3), (512 * MIB, 2785.4), (1024 * MIB, 5503.4)), ranks=8,
        seen="messages outside collectives",
    ),
    Published(
        "2 x 8 B200, 8 NDR", "b200:2", "sendrecv",
        "a published sendrecv scaling report on B200, NCCL 2.29, 2026: its first run on two nodes",
        ((1024, 25.6), (65536, 37.0), (MIB, 50.6), (4 * MIB, 121.6), (16 * MIB, 402.6), (64 * MIB, 1603),
         (256 * MIB, 6394)),
        seen="messages outside collectives",
    ),
    *(
        Published(
            "2 cards on one PCIe 3 switch, no peer-to-peer", "pcie3-box", collective,
            "published measurements of two RTX 2080 Ti in a rented container: nccl-tests",
            ((1024, small), (65536, middle), (MIB, large), (16 * MIB, larger)), (("pcie.peer", "none"),), ranks=2,
        )
        for collective, small, middle, large, larger in (
            ("all_reduce", 12.1, 40.1, 279.5, 4209.7),
            ("broadcast", 12.04, 20.73, 113.8, 1539.1),
            ("reduce", 10.06, 19.1, 112.5, 1535.6),
            ("all_gather", 10.11, 27.63, 181.1, 2637.3),
            ("all_to_all", 12.94, 24.15, 151.6, 1886.6),
        )
    ),
    Published(
        "2 hosts, 40 GbE, gloo, each process on one core", "tcp-40g", "all_reduce",
        "pytorch/gloo issue 248: ring of 20 MB",
        ((20_000_000, 17251),), ranks=2, profile="gloo",
    ),
)  # fmt: skip
