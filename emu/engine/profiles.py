"""How a communication library uses the machine: what an engine run takes from the cluster, and what it leaves out."""

from dataclasses import dataclass

from emu.errors import ConfigError


@dataclass(frozen=True)
class Profile:
    """Switches between the ideal machine of the closed forms and what libraries make of it.

    `overheads`: sends, receives and kernel launches take time. `sums`: the local sums of a collective take the
    GPU's time. `eager`: every message leaves when it is sent, whatever its size. `windows`: TCP has
    windows, and ports that overflow. `launch_s` is what starting a collective takes. `tuned`: steps, protocols and
    channels of collectives are NCCL's, see `library`; sums are fused with the transfers there and cost nothing.
    """

    name: str
    overheads: bool = True
    sums: bool = True
    eager: bool = False
    windows: bool = True
    launch_s: float = 0.0
    tuned: bool = False


# Calibrated by two nodes of 8 A100, all-reduces of 1 to 16 KiB, beyond NCCL's own estimate: `bench.published.SMALL`.
NCCL_LAUNCH_S = 17e-6
GLOO_LAUNCH_S = 10e-6  # from memory: a call is handed to a worker thread

PROFILES = {
    "ideal": Profile("ideal", overheads=False, sums=False, eager=True, windows=False),
    "nccl": Profile("nccl", sums=False, launch_s=NCCL_LAUNCH_S, tuned=True),
    "mpi": Profile("mpi"),
    "gloo": Profile("gloo", launch_s=GLOO_LAUNCH_S),
}


def find_profile(name: str) -> Profile:
    """Return the profile of that name. Raise ConfigError for an unknown one."""
    if name not in PROFILES:
        raise ConfigError(f"profile: one of {', '.join(PROFILES)} is expected, got {name!r}")
    return PROFILES[name]
