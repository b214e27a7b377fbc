"""Does the wall clock keep the times of the virtual one, never early, and leave the cores to others?

Each row is one case: `asked` and `obtained` are emulated seconds (for "idle": cores; for "tbf": seconds of the kernel's
own shaping). `error_pct` is the median message, or the end of the last operation; `p99_pct` and `worst_pct` are the
message or operation that was off most; `early` counts operations that ended before their virtual time. Collectives and
flows run at the dilation that makes them last about as long; messages at the one that `auto` finds.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import tbf
from bench.runner import Option, run
from emu.comm.mpi_start import find_mpi, mpirun_environment, mpirun_line

LINKS = ((1e-6, 900e9), (1e-6, 25e9), (1e-5, 1e8), (1e-4, 1e9), (1e-3, 12.5e9), (1e-2, 1e9))  # latency, bandwidth
NETWORKS = ("nvlink4", "pcie4", "roce-100g", "tcp-10g")
COLLECTIVES = (("all_reduce", "ring"), ("all_reduce", "parameter_server"), ("broadcast", "binomial"))
LEAF_SPINE = str(Path(__file__).with_name("leaf_spine.toml"))
SPAN_S = 1.0  # of the host's clock, that a case lasts about
MOST = 5000
SHAPED = ((1e8, 12_500_000), (1e9, 125_000_000), (1e8, 1 << 20), (1e9, 1 << 20))  # bits/s, bytes
FRAME, PAYLOAD = 1514, 1448  # bytes on the wire, and of them the program's

Case = list[Any]  # name, cluster or link, dilation or "auto" or seconds to last, program, argument


def messages() -> list[Case]:
    """One message alone: by its latency (8 bytes), and by its bandwidth."""
    cases: list[Case] = []
    for latency_s, rate in LINKS:
        link = f"latency={latency_s * 1e6:g} us, bandwidth={rate / 1e9:g} GB/s"
        large = min(int(10 * latency_s * rate), 1 << 25)
        for nbytes in (8, large):
            cases.append([f"one message of {nbytes:,} B; {link}", link, "auto", "message", nbytes])
    return cases


def shared() -> list[Case]:
    """Flows that share links, on 8 ranks."""
    link = "latency=5 us, bandwidth=1 GB/s"
    draw = random.Random(7)
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
    many = [(*draw.choice(pairs), draw.randrange(20_000, 400_000), 0.0) for _ in range(24)]
    staggered = [(0, 1, 400_000, 0.0), (2, 1, 200_000, 1e-4), (3, 1, 100_000, 2e-4), (2, 4, 300_000, 3e-4)]
    patterns = {
        "two messages through one link": [(0, 1, 300_000, 0.0)] * 2,
        "eight messages through one link": [(0, 1, 100_000, 0.0)] * 8,
        "parking lot: three flows on two ports": [(0, 2, 300_000, 0.0), (1, 2, 300_000, 0.0), (0, 3, 300_000, 0.0)],
        "staggered unequal flows": staggered,
        "small beside large": [(0, 1, 1_000_000, 0.0), *[(2, 1, 5_000, 1e-4 * k) for k in range(6)]],
        "the parameter server's port, 7 workers": [(w, 0, 100_000, 0.0) for w in range(1, 8)],
    }
    cases: list[Case] = [[name, link, 1000, "flows", pattern] for name, pattern in patterns.items()]
    return [*cases, ["24 random flows on a 4:1 leaf-spine", LEAF_SPINE, 1000, "flows", many]]


def idle() -> list[Case]:
    """All ranks wait."""
    return [["idle waiting of 8 ranks", "latency=10 us, bandwidth=1 GB/s", 2000, "idle", 1 << 20]]


def collectives(ranks: int) -> list[Case]:
    """Collectives and a training step over four networks, each at the dilation that makes it last about as long."""
    cases: list[Case] = []
    for network in NETWORKS:
        nbytes = 4_194_304 if network != "tcp-10g" else 1_048_576
        for operation, algorithm in COLLECTIVES:
            name = f"{algorithm} {operation}, {ranks} ranks, {network}"
            cases.append([name, network, "span", "collective", [operation, algorithm, nbytes]])
        cases.append([f"a ZeRO-3 step, {ranks} ranks, {network}", network, "span", "zero3", 16])
    return [_lasting(case, ranks) for case in cases]


def ring() -> list[Case]:
    """The fastest links at a dilation of 500."""
    asked = ["all_reduce", "ring", 1 << 22]
    return [["ring all_reduce of 4 MiB, 8 ranks, nvlink4", "nvlink4", 500, "collective", asked]]


PARTS: dict[str, tuple[int, Callable[[], list[Case]]]] = {  # ranks, and what they run
    "messages": (2, messages),
    "shared": (8, shared),
    "idle": (8, idle),
    "collectives4": (4, lambda: collectives(4)),
    "collectives8": (8, lambda: collectives(8)),
    "ring": (8, ring),
}


def measure(part: str, case: str) -> dict[str, Any]:
    """Run the cases asked for, a job for each part."""
    began = time.perf_counter()
    known = (*PARTS, "tbf")
    if part and part not in known:
        sys.exit(f"bench.wall --part: one of {', '.join(known)} is expected, got {part!r}")
    rows: list[dict[str, Any]] = []
    for name, (ranks, make) in PARTS.items():
        chosen = [each for each in make() if case in each[0]] if part in ("", name) else []
        rows += _job(ranks, chosen) if chosen else []
    note = tbf.why_not()
    if part in ("", "tbf") and not note:
        rows += [row for rate, nbytes in SHAPED for row in _shaped(rate, nbytes)]
    columns = ("case", "dilation", "asked", "obtained", "error_pct", "p99_pct", "worst_pct", "early")
    table = [{name: row.get(name, "") for name in columns} for row in rows]
    skipped = {"tc_tbf": f"skipped: {note}"} if note else {}
    return {"rows": table, "wall_s": time.perf_counter() - began, **skipped, "checks": _checks(rows)}


def _checks(rows: list[dict[str, Any]]) -> dict[str, bool]:
    checks = {"nothing is early": not any(row["early"] for row in rows)}
    cores = [row["obtained"] for row in rows if row["case"].startswith("idle")]
    if cores:
        checks["eight idle ranks take less than a fifth of a core"] = max(cores) < 0.2
    off = {row["case"]: abs(row["error_pct"]) for row in rows if row["case"].startswith(("tc tbf", "emu, as"))}
    for name in [name for name in off if name.startswith("tc tbf")]:
        other = name.replace("tc tbf", "emu, as tc tbf")
        checks[f"{other} is as near to the rate as that"] = off[other] <= off[name]
    return checks


def _shaped(rate: float, nbytes: int) -> list[dict[str, Any]]:
    """The same message through `tc tbf` and through emu: what it should take by the rate that was asked for."""
    name = f"{nbytes:,} B at {rate / 1e6:g} Mb/s"
    payload = nbytes * 8 / rate
    took = tbf.transfer_s(rate, nbytes)
    framed = payload * FRAME / PAYLOAD
    link = f"latency=0 us, bandwidth={rate / 1e6:g} Mb/s"
    (row,) = _job(2, [[f"emu, as tc tbf: {name}", link, 1, "thrice", nbytes]])
    kernel = {
        "case": f"tc tbf: {name}", "dilation": "", "asked": payload, "obtained": took,
        "error_pct": 100 * (took / payload - 1), "worst_pct": 100 * (took / framed - 1), "early": 0,
    }  # fmt: skip
    return [kernel, row]


def _lasting(case: Case, ranks: int) -> Case:
    """Choose the dilation at which a case lasts as long as all others, by its virtual time."""
    from bench.wall_ranks import virtual_s

    name, cluster, _, program, argument = case
    dilation = SPAN_S / virtual_s(cluster, ranks, program, argument)
    return [name, cluster, max(1, min(MOST, round(dilation))), program, argument]


def _job(ranks: int, cases: list[Case]) -> list[dict[str, Any]]:
    mpi = find_mpi()
    line = mpirun_line(mpi, ranks, [sys.executable, "-m", "bench.wall_ranks", json.dumps(cases)])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    job = subprocess.Popen(
        line, env=mpirun_environment(mpi, {**os.environ, **threads}), stdout=subprocess.PIPE, text=True
    )
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
    run(
        __doc__.splitlines()[0], measure, part=Option("", f"one of {', '.join((*PARTS, 'tbf'))} alone"),
        case=Option("", "only cases whose name holds this"),
    )  # fmt: skip
