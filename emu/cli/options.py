"""Options that several subcommands share, and what they turn into. Everything is checked before any work."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.cluster import Cluster

DEFAULT_CLUSTER = "pcie4"


_DECLARED = "emu.faults"  # where a command's --slow and --degrade wait for its cluster


def _declare(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> None:
    if values:
        ctx.meta.setdefault(_DECLARED, {})[option.name] = "; ".join(values)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --cluster, --link, --set, --slow and --degrade."""
    for option in reversed((
        click.option("--cluster", metavar="NAME|FILE.toml", help=f"The cluster to emulate [{DEFAULT_CLUSTER}]; "
                     "NAME:N for N nodes; `emu show clusters` lists them."),
        click.option("--link", metavar="TEXT", help="A cluster of your own: 'latency=5 us, bandwidth=12 Gb/s'."),
        click.option("--set", "settings", metavar="KEY=VALUE", multiple=True,
                     help="Change the cluster: nic.bandwidth='100 Gb/s'. May be repeated."),
        click.option("--slow", metavar="RANKS:FACTOR", multiple=True, expose_value=False, callback=_declare,
                     help="Slow GPUs: 3:0.5 runs rank 3 at half speed. May be repeated."),
        click.option("--degrade", metavar="LINK:FACTOR", multiple=True, expose_value=False, callback=_declare,
                     help="Degraded links: node0.nic0:0.25. May be repeated."),
    )):  # fmt: skip
        command = option(command)
    return command


def ranks_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -n and --local."""
    for option in reversed((
        click.option("-n", "ranks", type=click.IntRange(min=1), help="Start mpirun with so many ranks."),
        click.option("--hostfile", type=click.Path(), help="Hosts for mpirun, with -n."),
        click.option("--local", type=click.IntRange(min=1), help="Run so many ranks in this one process, no MPI."),
    )):  # fmt: skip
        command = option(command)
    return command


def _check_profile(ctx: click.Context, option: click.Parameter, name: str) -> str:
    from emu.catalog.schema import unknown
    from emu.engine.profiles import PROFILES

    if name not in PROFILES:
        raise ConfigError(f"--profile: {unknown('profile', name, PROFILES)}")
    return name


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --profile."""
    return click.option(
        "--profile", default="ideal", show_default=True, metavar="ideal|nccl|mpi|gloo", callback=_check_profile,
        help="Overheads of a communication library.",
    )(command)  # fmt: skip


def make_cluster(cluster: str | None, link: str | None, settings: Sequence[str], gpus: int | None) -> Cluster:
    """Return the cluster that the options describe, with at least so many GPUs (None: its own number)."""
    from emu.cluster import link_cluster, load_cluster

    if link is not None:
        if cluster is not None:
            raise ConfigError(f"--link: either --cluster or --link is expected, got both ({cluster!r}, {link!r})")
        return link_cluster(link, gpus, read_settings(settings))
    return load_cluster(cluster or DEFAULT_CLUSTER, read_settings(settings), gpus)


def read_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE texts, and what --slow and --degrade declare, as a mapping."""
    ctx = click.get_current_context(silent=True)
    found: dict[str, str] = dict(ctx.meta.get(_DECLARED, {})) if ctx else {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ConfigError(f"--set: KEY=VALUE is expected, got {text!r}; such as nic.bandwidth='100 Gb/s'")
        found[key.strip()] = value.strip()
    return found


def folder_for(output: str | None, name: str, option: str = "--output") -> Path:
    """Make and return the directory of a run's files. Raise ConfigError if it cannot be written.

    A directory that is new and still empty when the process ends is taken away again.
    """
    path = Path(output) if output is not None else _unused(Path("emu-runs"), name)
    if not path.exists():
        atexit.register(drop_if_empty, path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".emu-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = f"got {path}: {error.strerror}"
        raise ConfigError(f"{option}: a directory that can be written is expected, {why}") from None
    return path


def drop_if_empty(path: Path) -> None:
    """Remove a directory that nothing was written to."""
    with suppress(OSError):
        path.rmdir()


def _unused(parent: Path, name: str) -> Path:
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"
