"""Options of the wall clock, the same for every command that runs a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.wall.run import Pace

CLOCKS = ("virtual", "wall")


def wall_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --clock, --dilation, --compute and --speedup to a command."""
    for option in (
        click.option("--speedup", type=float, help="With --compute measured: emulated GPU over this host's."),
        click.option(
            "--compute", metavar="model|measured|none", help="What a kernel takes under the wall clock [model]."
        ),
        click.option(
            "--dilation", metavar="N|auto", help="Seconds of the wall clock for one emulated second; auto finds it [1]."
        ),
        click.option(
            "--clock", default="virtual", show_default=True, metavar="virtual|wall",
            help="Emulated time, or live: every message really held back.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def read_pace(clock: str, dilation: str | None, compute: str | None, speedup: float | None) -> Pace | None:
    """Return the pace that the options ask for; None for the virtual clock."""
    if clock not in CLOCKS:
        raise ConfigError(f"--clock: one of {', '.join(CLOCKS)} is expected, got {clock!r}")
    if clock == "virtual":
        given = {"--dilation": dilation, "--compute": compute, "--speedup": speedup}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name}: goes with --clock wall, got {value!r} under the virtual clock")
        return None
    from emu.wall.run import read_pace as read

    if speedup is not None and compute != "measured":
        raise ConfigError(f"--speedup: goes with --compute measured, got {speedup} without")
    return read(dilation if dilation is not None else 1.0, compute or "model", speedup if speedup is not None else 1.0)
