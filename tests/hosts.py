"""Several hosts on one machine: network namespaces on a bridge, each with an address and a host name.

Ranks on different hosts reach each other by the kernel's TCP only, as on a cluster, so host files, remote
start and everything that depends on "same node or not" can be tested. Needs root; see the fixture `hosts`.

    def test_it(hosts):
        two = hosts(2)
        ended = two.run(["emu", "train"], ranks=4)
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jobs
import pytest

from emu.comm.mpi_start import mpirun_environment, mpirun_line

# Called as ssh would be. Options come first; what follows the host is a command line for its shell.
_AGENT = """#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$host" "$@"
"""


@dataclass(frozen=True)
class Hosts:
    """Hosts that can reach each other by name. `switch` is the namespace of the bridge between them."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    switch: str
    directory: Path
    agent: Path

    def hostfile(self, slots: int = 2, mpi: str = "openmpi") -> Path:
        """Write and return a host file in the format of an MPI family."""
        form = "{} slots={}\n" if mpi == "openmpi" else "{}:{}\n"
        path = self.directory / f"hostfile-{mpi}-{slots}"
        path.write_text("".join(form.format(name, slots) for name in self.names))
        return path

    def environment(self) -> dict[str, str]:
        """Return what makes either MPI start its daemons on these hosts."""
        return {
            "PRTE_MCA_plm_ssh_agent": str(self.agent),
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self.agent),
        }

    def line_on(self, host: int, argv: Sequence[str]) -> list[str]:
        """Return the line that runs `argv` on one host."""
        return [str(self.agent), self.names[host], shlex.join(argv)]

    def start(self, argv: Sequence[str], ranks: int, mpi: str = "openmpi", slots: int = 2) -> jobs.Job:
        """Start a program on ranks over all hosts, by an mpirun on the first one."""
        python = jobs.python_with(mpi)
        found = jobs.installed_mpi(python)
        line = mpirun_line(found, ranks, jobs.resolved(argv, python), str(self.hostfile(slots, mpi)))
        environment = mpirun_environment(found, self.environment())
        return jobs.start_job(self.line_on(0, line), None, mpi, environment)

    def run(
        self, argv: Sequence[str], ranks: int, mpi: str = "openmpi", slots: int = 2, limit_s: float = jobs.LIMIT_S
    ) -> jobs.Finished:
        """Start a program and wait for its end; the test fails if it outlasts `limit_s`."""
        finished = self.start(argv, ranks, mpi, slots).wait(limit_s)
        if finished.timed_out:
            pytest.fail(f"{' '.join(argv)} on {ranks} ranks ran longer than {limit_s:.0f} s:\n{finished.output}")
        return finished


@contextmanager
def made_hosts(n: int, directory: Path) -> Iterator[Hosts]:
    """Make `n` hosts, or skip the test with the reason why this machine cannot."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("hosts need the programs ip (package iproute2) and unshare")
    switch = f"emu{os.getpid()}-switch"
    names = tuple(f"emu{os.getpid()}-{i}" for i in range(n))
    addresses = tuple(f"10.99.0.{i + 1}" for i in range(n))
    agent = directory / "agent"
    agent.write_text(_AGENT)
    agent.chmod(0o755)
    try:
        allowed = subprocess.run(["ip", "netns", "add", switch], capture_output=True, text=True)
        if allowed.returncode != 0:
            pytest.skip(f"network namespaces need root: {allowed.stderr.strip()}")
        _ip(f"-n {switch} link add bridge type bridge")
        _ip(f"-n {switch} link set bridge up")
        for i, (name, address) in enumerate(zip(names, addresses, strict=True)):
            _add_host(switch, i, name, address)
            _write_names(name, names, addresses)
        yield Hosts(names, addresses, switch, directory, agent)
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
            shutil.rmtree(_etc(name), ignore_errors=True)


@pytest.fixture
def hosts(tmp_path):
    """Return a function that makes so many hosts, once a test; they go when the test ends."""
    made = []

    def make(n: int) -> Hosts:
        made.append(made_hosts(n, tmp_path))
        return made[-1].__enter__()

    yield make
    for context in made:
        context.__exit__(None, None, None)


def _add_host(switch: str, i: int, name: str, address: str) -> None:
    _ip(f"netns add {name}")
    _ip(f"link add eth0 netns {name} type veth peer name port{i} netns {switch}")
    _ip(f"-n {switch} link set port{i} master bridge up")
    _ip(f"-n {name} address add {address}/24 dev eth0")
    _ip(f"-n {name} link set eth0 up")
    _ip(f"-n {name} link set lo up")


def _write_names(name: str, names: Sequence[str], addresses: Sequence[str]) -> None:
    """Write the hosts' names where `ip netns exec` mounts them over /etc/hosts."""
    _etc(name).mkdir(parents=True, exist_ok=True)
    lines = (f"{address} {other}\n" for address, other in zip(addresses, names, strict=True))
    (_etc(name) / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))


def _etc(name: str) -> Path:
    return Path("/etc/netns") / name


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)
