"""How a communication library uses the machine: what an engine run takes from the cluster, and what it leaves out."""

from dataclasses import dataclass

from emu.errors import ConfigError


@dataclass(frozen=True)
class Profile:
    """Switches between the ideal machine of the closed forms and what libraries make of it.

    `overheads`: sends, receives and kernel launches take time. `sums`: the local sums of a collective take the
    GPU's time. `eager`: every message leaves when it is sent, whatever its size. `windows`: TCP has
    windows, and ports that overflow.
    """

    name: str
    overheads: bool = True
    sums: bool = True
    eager: bool = False
    windows: bool = True


PROFILES = {
    "ideal": Profile("ideal", overheads=False, sums=False, eager=True, windows=False),
    "nccl": Profile("nccl"),
    "mpi": Profile("mpi"),
    "gloo": Profile("gloo"),
}


def find_profile(name: str) -> Profile:
    """Return the profile of that name. Raise ConfigError for an unknown one."""
    if name not in PROFILES:
        raise ConfigError(f"profile: one of {', '.join(PROFILES)} is expected, got {name!r}")
    return PROFILES[name]
