"""`emu doctor`: what this machine offers, and the line that starts ranks on it."""

import dataclasses
import json
import os

import click

from emu.doctor import Health, Sleep, examine, fix


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--fix", "write", is_flag=True, help="Let a plain mpirun work in this virtual environment.")
def doctor(as_json: bool, write: bool) -> None:
    """Tell which MPI is here and whether it works, how precisely the host waits, and how to start ranks.

    The exit status is 1 when ranks cannot start or a trial fails.
    """
    if write:
        for path in fix(os.environ):
            click.echo(f"wrote {path}", err=as_json)
    health = examine(os.environ)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(health), "healthy": health.healthy}, indent=2))
    else:
        for name, value in _rows(health):
            click.echo(f"{name:<14} {value}")
    if not health.healthy:
        raise SystemExit(1)


def _rows(health: Health) -> list[tuple[str, str]]:
    rows = [("python", health.python)]
    if health.mpi is None:
        rows.append(("MPI", f"none: {health.mpi_error}"))
    else:
        rows += [
            ("MPI", f"{health.mpi.name} {health.mpi.version} ({health.mpi.library})"),
            ("mpirun", health.mpi.mpirun),
            ("mpi4py", health.mpi.mpi4py),
        ]
    rows += list(health.trials.items())
    rows.append(("slots", f"{health.cores} cores; more ranks than cores may run, and take turns"))
    rows += [("wait", _sleep(sleep)) for sleep in health.sleeps]
    rows.append(("GPUs", ", ".join(health.gpus) or f"none: {health.gpu_error or 'cupy sees no device'}"))
    rows.append(("container", health.container or "none"))
    rows += [("hint", hint) for hint in health.hints]
    rows.append(("start 4 ranks", health.start_line or "emu train --local 4    (mpirun starts none here)"))
    return rows


def _sleep(sleep: Sleep) -> str:
    asked, median, worst = (s * 1e6 for s in (sleep.asked_s, sleep.median_late_s, sleep.worst_late_s))
    return f"a sleep of {asked:.0f} us returns {median:.0f} us late (worst {worst:.0f} us)"
