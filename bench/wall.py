"""Does the wall clock keep the times of the virtual one, never early, and leave the cores to others?

Each row is one case: `asked` and `obtained` are emulated seconds (for "idle": cores). `error_pct` is the median
message, or the end of the last operation; `p99_pct` and `worst_pct` are the worst message or operation; `early`
counts operations that ended before their virtual time.
"""

import json
import os
import random
import subprocess
import sys
import time
from typing import Any

from bench.runner import Option, run
from emu.comm.mpi_start import find_mpi, mpirun_environment, mpirun_line

LINKS = ((1e-6, 900e9), (1e-6, 25e9), (1e-5, 1e8), (1e-4, 1e9), (1e-3, 12.5e9), (1e-2, 1e9))  # latency, bandwidth
NETWORKS = ("nvlink4", "pcie4", "roce-100g", "tcp-10g")
COLLECTIVES = (("all_reduce", "ring"), ("all_reduce", "parameter_server"), ("broadcast", "binomial"))
SPAN_S = 0.8  # of the host's clock, that a case of a collective takes about
MOST = 5000


def messages() -> list[list[Any]]:
    """One message alone: by its latency (8 bytes), and by its bandwidth."""
    cases = []
    for latency_s, rate in LINKS:
        link = f"latency={latency_s * 1e6:g} us, bandwidth={rate / 1e9:g} GB/s"
        large = min(int(10 * latency_s * rate), 1 << 25)
        for nbytes in (8, large):
            cases.append([f"one message of {nbytes:,} B; {link}", link, "auto", "message", nbytes])
    return cases


def shared() -> list[list[Any]]:
    """Flows that share links, on 8 ranks."""
    link, tree = "latency=5 us, bandwidth=1 GB/s", "tcp-10g"
    draw = random.Random(7)
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    many = [(*draw.choice(pairs), draw.randrange(20_000, 400_000), 0.0) for _ in range(24)]
    staggered = [(0, 1, 400_000, 0.0), (2, 1, 200_000, 1e-4), (3, 1, 100_000, 2e-4), (2, 4, 300_000, 3e-4)]
    patterns = {
        "two messages through one link": [(0, 1, 300_000, 0.0)] * 2,
        "eight messages through one link": [(0, 1, 100_000, 0.0)] * 8,
        "three flows on two ports": [(0, 2, 300_000, 0.0), (1, 2, 300_000, 0.0), (0, 3, 300_000, 0.0)],
        "staggered unequal flows": staggered,
        "small beside large": [(0, 1, 1_000_000, 0.0), *[(2, 1, 5_000, 1e-4 * k) for k in range(6)]],
        "the parameter server's port, 7 workers": [(w, 0, 100_000, 0.0) for w in range(1, 8)],
    }
    cases = [[name, link, 400, "flows", pattern] for name, pattern in patterns.items()]
    return [*cases, ["random flows among 8 ranks", tree, 400, "flows", many]]


def collectives(ranks: int) -> list[list[Any]]:
    """Collectives over four networks, each at the dilation that makes it last about as long."""
    from emu.cluster import load_cluster

    cases = []
    for network in NETWORKS:
        form = load_cluster(network, {}, ranks).closed_form(0, 1)
        nbytes = 4_194_304 if network != "tcp-10g" else 1_048_576
        for operation, algorithm in COLLECTIVES:
            moved = {"ring": 2.0, "parameter_server": 2.0 * (ranks - 1), "binomial": 2.0}[algorithm]
            took = 2 * moved * nbytes / form.bandwidth_bytes_per_s
            name = f"{algorithm} {operation}, {ranks} ranks, {network}"
            dilation = max(1, min(MOST, round(SPAN_S / took)))
            cases.append([name, network, dilation, "collective", [operation, algorithm, nbytes]])
    return cases


def measure(quick: int) -> dict[str, Any]:
    """Run all cases, a job for each number of ranks."""
    began = time.perf_counter()
    rows = _job(2, messages()[:: 4 if quick else 1])
    rows += _job(8, [*shared(), ["idle waiting of 8 ranks", "latency=10 us, bandwidth=1 GB/s", 2000, "idle", 1 << 20]])
    for ranks in (4,) if quick else (4, 8):
        rows += _job(ranks, collectives(ranks))
    if not quick:
        ring = ["all_reduce", "ring", 1 << 25]
        rows += _job(8, [["ring all_reduce of 32 MiB, 8 ranks, nvlink4", "nvlink4", 500, "collective", ring]])
    columns = ("case", "dilation", "asked", "obtained", "error_pct", "p99_pct", "worst_pct", "early")
    table = [{name: row.get(name, "") for name in columns} for row in rows]
    cores = next(row["obtained"] for row in rows if row["case"].startswith("idle"))
    return {
        "rows": table,
        "wall_s": time.perf_counter() - began,
        "checks": {
            "nothing is early": not any(row["early"] for row in rows),
            "eight idle ranks take less than a fifth of a core": cores < 0.2,
        },
    }


def _job(ranks: int, cases: list[list[Any]]) -> list[dict[str, Any]]:
    mpi = find_mpi()
    line = mpirun_line(mpi, ranks, [sys.executable, "-m", "bench.wall_ranks", json.dumps(cases)])
    job = subprocess.Popen(line, env=mpirun_environment(mpi, os.environ), stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    rows = []
    for text in job.stdout:
        if text.startswith("ROW "):
            rows.append(json.loads(text[4:]))
            print(f"{rows[-1]['case']}: {rows[-1]['error_pct']} %", file=sys.stderr)
    if job.wait() != 0 or len(rows) != len(cases):
        sys.exit(f"bench.wall: {len(cases)} cases on {ranks} ranks are expected, got {len(rows)}")
    return rows


if __name__ == "__main__":
    run(__doc__.splitlines()[0], measure, quick=Option(0, "1: fewer cases"))
