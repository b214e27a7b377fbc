"""emu verify: check a collective algorithm, ours or a student's, by who put what in."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from emu.cli.options import DEFAULT_CLUSTER, read_settings
from emu.errors import ConfigError
from emu.units import format_bytes, format_time, parse_bytes
from emu.verify.contract import CONTRACTS
from emu.verify.guard import Outcome, run_guarded
from emu.verify.picture import Holdings, svg, text

FAULTS_SHOWN = 2


@click.command()
@click.argument("collective", type=click.Choice(list(CONTRACTS)))
@click.argument("submission", metavar="FILE.py:FUNCTION|ALGORITHM")
@click.option("-p", "--ranks", default="2-16", help="Numbers of ranks, such as 2-16 or 2,3,8.  [default: 2-16]")
@click.option("-n", "--lengths", help="Lengths in elements [default: 0, 1, p-1, p, p+1, 2p and primes].")
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, help="Time it there; '' for no timing.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change the cluster.")
@click.option("--bytes", "nbytes", default="1 MiB", show_default=True, help="The size that is timed.")
@click.option("--show", type=click.IntRange(1, 16), metavar="RANKS", help="Draw who holds what after each step.")
@click.option("--svg", "svg_path", type=click.Path(dir_okay=False), help="Draw it into this SVG file too.")
@click.option("--limit", "limit_s", default=10.0, show_default=True, help="Seconds that one case may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    collective: str, submission: str, ranks: str, lengths: str | None, cluster: str, settings: tuple[str, ...],
    nbytes: str, show: int | None, svg_path: str | None, limit_s: float, as_json: bool,
) -> int:  # fmt: skip
    """Check an algorithm of COLLECTIVE by provenance.

    The submission is FILE.py:FUNCTION or the name of a built-in algorithm. It runs in a process of its own, on
    every number of ranks and many lengths; every send waits for its receive. Exit status 1: it is wrong.

    \b
    all_reduce(comm, x), broadcast(comm, x, root), reduce(comm, x, root)   in place
    all_gather(comm, x, out), gather(comm, x, out, root)                   out: every rank's x, in rank order
    reduce_scatter(comm, x, out), scatter(comm, x, out, root)              out: my chunk
    all_to_all(comm, x, out)                                               out: a chunk from everyone
    barrier(comm)

    \b
    What comm has:
    rank, size                                  my number, and how many we are
    isend(x, to), irecv(x, source)              start a message; both return a request
    waitall([request, ...])                     wait for them
    send(x, to), recv(x, source)                the same, and wait
    sendrecv(x, to, into, source)               send x, receive into `into`, wait for both
    reduce(op, into, received)                  into = op(into, received); op: sum, prod, max, min
    scale(x, factor)                            multiply x
    copy(into, x)                               copy x to `into`
    empty_like(x), empty(size, dtype)           room for more
    Send, Recv, Isend, Irecv, Sendrecv, ...     as in mpi4py

    Buffers are one-dimensional; x[a:b] is a view. Parameters root and op may be left out.
    """
    counts = read_numbers("--ranks", ranks, 1)
    request = {
        "collective": collective,
        "submission": submission,
        "ranks": counts,
        "lengths": read_numbers("--lengths", lengths, 0) if lengths else None,
        "cluster": cluster,
        "settings": read_settings(settings),
        "nbytes": parse_bytes(nbytes, "--bytes"),
        "show": show or (min(4, max(counts)) if svg_path else 0),
        "case_limit_s": limit_s,
    }
    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder, "trace")) if cluster else ""
        outcome = run_guarded({**request, "trace": trace}, 60 + len(counts) * limit_s)
        if "error" in outcome.results:
            raise ConfigError(outcome.results["error"])
        correct = not outcome.stopped and not outcome.results["faults"]
        if trace and correct:
            outcome.results["timed"] = _timed(request, trace)
    picture = Holdings(**outcome.results["picture"]) if outcome.results.get("picture") else None
    if svg_path and picture:
        Path(svg_path).write_text(svg(picture))
    if as_json:
        print(json.dumps({"correct": correct, "stopped": outcome.stopped, **request, **outcome.results}))
    else:
        print(_report(request, outcome, picture if show else None))
    sys.stdout.flush()
    return 0 if correct else 1


def _timed(request: dict[str, Any], path: str) -> dict[str, Any]:
    from emu.cluster import load_cluster
    from emu.trace import Trace
    from emu.verify.timing import time_beside_best

    trace = Trace.load(path)
    cluster = load_cluster(request["cluster"], request["settings"], trace.world_size)
    return asdict(time_beside_best(request["collective"], trace, cluster, request["nbytes"]))


def read_numbers(where: str, words: str, least: int) -> list[int]:
    """Read numbers and ranges: 2-4,8 is [2, 3, 4, 8]. Raise ConfigError for anything else."""
    numbers: list[int] = []
    for word in words.split(","):
        low, dash, high = word.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()) or int(low) < least or (dash and int(high) < int(low)):
            raise ConfigError(f"{where}: numbers from {least} on are expected, as in 2-16 or 2,3,8, got {words!r}")
        numbers += range(int(low), int(high if dash else low) + 1)
    return sorted(set(numbers))


def _report(request: dict[str, Any], outcome: Outcome, picture: Holdings | None) -> str:
    results, name = outcome.results, f"{request['submission']} as {request['collective']}"
    lines = []
    if outcome.printed.strip():
        lines += ["it printed:", *(f"  {line[:100]}" for line in outcome.printed.splitlines()[:10]), ""]
    if outcome.stopped:
        return "\n".join([*lines, f"NOT CORRECT  {name}: {outcome.stopped}"])
    lines += _table(results["rows"])
    faults = results["faults"]
    for fault in faults[:FAULTS_SHOWN]:
        lines += [f"WRONG at {_case(fault['case'])}:", *(f"  {why}" for why in fault["why"]), ""]
    if faults[FAULTS_SHOWN:]:
        also = _ranges([fault["case"]["p"] for fault in faults[FAULTS_SHOWN:]])
        lines += [f"also wrong at p = {also}", ""]
    if picture:
        lines += [text(picture), ""]
    if "timed" in results:
        lines += [_timing(results["timed"], request["cluster"]), ""]
    verdict = "correct     " if not faults else "NOT CORRECT "
    return "\n".join([*lines, f"{verdict} {name}, checked at p = {_ranges(request['ranks'])}"])


def _case(case: dict[str, Any]) -> str:
    root = f", root={case['root']}" if case["root"] else ""
    op = f", op={case['op']}" if case["op"] != "sum" else ""
    return f"p={case['p']}, n={case['n']}{root}{op}"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = ["  p  elements  messages  steps (least)  bytes of the busiest rank (least)"]
    for r in rows:
        least = f"({r['least_bytes']:.0f})"
        lines.append(
            f"{r['p']:>3}  {r['n']:>8}  {r['messages']:>8}  {r['steps']:>5} {'(' + str(r['least_steps']) + ')':>7}"
            f"  {r['bytes_busiest_rank']:>10} {least}"
        )
    return [*lines, ""]


def _timing(timed: dict[str, Any], cluster: str) -> str:
    mine, best = timed["time_s"], timed["best_time_s"]
    ratio = f"{mine / best:.2f} times" if best else "as long as"
    return (
        f"{format_bytes(timed['nbytes'])} on {timed['p']} GPUs of {cluster}: {format_time(mine)}, "
        f"{ratio} the best known, {timed['best']} with {format_time(best)}"
    )


def _ranges(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    whole = len(numbers) > 2 and numbers == list(range(first, last + 1))
    return f"{first} to {last}" if whole else ", ".join(map(str, numbers))
