"""The `emu` command: one module a subcommand, imported when it is called.

Errors that the user can mend are one line and exit status 2; under mpirun they end the job on every rank.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
import zlib

import click

from emu.errors import EmuError

COMMANDS = {
    "train": ("emu.cli.train", "Train a model on emulated GPUs; see where each step goes."),
    "run": ("emu.cli.run", "Run an mpi4py program under emulation."),
    "plan": ("emu.cli.plan", "Work out what a training run needs: memory by ZeRO stage."),
    "compare": ("emu.cli.compare", "Train or infer in several precisions, side by side."),
    "replay": ("emu.cli.replay", "Time a saved trace on another cluster."),
    "sweep": ("emu.cli.sweep", "Time one trace on many clusters."),
    "show": ("emu.cli.show", "Show the catalogue, or draw a cluster."),
    "bench": ("emu.cli.bench", "Measure a collective, with nccl-tests' flags and columns."),
    "verify": ("emu.cli.verify", "Check a collective algorithm by provenance."),
    "agree": ("emu.cli.agree", "Run a program under both clocks, and compare each operation."),
    "calibrate": ("emu.cli.calibrate", "Measure the real links here, and write a cluster file of them."),
    "doctor": ("emu.cli.doctor", "Tell what MPI and GPUs are here, and how to start."),
}


class Lazy(click.Group):
    """A group whose commands are imported when they are called: every rank pays for its imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands whose modules are there."""
        return [name for name, (module, _) in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(COMMANDS[name][0]), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="emu")
def emu() -> None:
    """Run distributed-training programs on emulated GPUs: the bytes are real, the time is emulated."""


def main() -> None:
    """Run the command line; the entry point of `emu`."""
    _share_cores()
    try:
        status = emu.main(standalone_mode=False)
    except EmuError as error:
        _fail(f"emu: {error}", 2)
    except click.exceptions.Abort:
        _fail("emu: interrupted", 130)
    except click.ClickException as error:
        from emu.cli.usage import is_help, usage_line

        if is_help(error):
            error.show()
            sys.exit(2)
        _fail(f"emu: {usage_line(error)}", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(text: str, status: int) -> None:
    """Tell an error and end. Ranks that a launcher started all meet it: the lowest one's words end the job.

    Open MPI's launcher ends the others as soon as one has failed, however long that takes it: who comes second on a
    host waits for it. MPICH's does not before MPI is loaded, so there only the first rank of each host tells it.
    """
    sys.stdout.flush()
    rank = next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()), None)
    mpi = sys.modules.get("mpi4py.MPI")
    live = rank is not None and mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.size > 1
    time.sleep(min(rank or 0, 4) * 0.5)
    if os.environ.get("MPI_LOCALRANKID", "0") != "0" and not live:
        sys.exit(status)
    if rank is not None and not _first_here(text):
        time.sleep(_LAUNCHER_S)
    else:
        print(text, file=sys.stderr, flush=True)
        if rank is not None:
            time.sleep(_PASSED_ON_S)
    if mpi is not None and live:
        mpi.COMM_WORLD.Abort(status)
    sys.exit(status)


def _first_here(text: str) -> bool:
    """Whether this is the first rank on this host to tell these words now; True where nobody can know.

    The claim is a file in the launcher's own directory of the job, which the launcher removes. An old claim is that
    of an earlier command of the same job.
    """
    folder, job = os.environ.get("PMIX_SERVER_TMPDIR"), os.environ.get("PMIX_NAMESPACE", "job")
    if not folder:
        return True
    path = os.path.join(folder, f"emu-error-{job}-{zlib.crc32(text.encode())}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return time.time() - os.stat(path).st_mtime > _LAUNCHER_S
    except OSError:
        return True
    return True


def _share_cores() -> None:
    """Give each rank its share of the cores for its linear algebra, where the user has not decided.

    Several ranks on one host with all cores' threads each are many times slower than one thread each.
    """
    ranks = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdigit()), None)
    if ranks is None:
        return
    threads = max(1, len(os.sched_getaffinity(0)) // int(ranks))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


_PASSED_ON_S = 0.2  # what a launcher needs to pass on what a rank has told: its end may overtake that

# how long a launcher may take to end the other ranks of a job in which one has failed
_LAUNCHER_S = 15.0
# this process's number, by launcher; before MPI is loaded there is nobody else to ask
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
# how many ranks a launcher started on this host; PMI_SIZE counts all hosts', which errs on the safe side
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE", "PMI_SIZE")
