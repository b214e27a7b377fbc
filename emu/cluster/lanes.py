"""PCIe lanes: which width each slot of a CPU trains at when there are too few lanes for all."""

from collections.abc import Sequence

from emu.errors import ConfigError

_NARROWER = {16: 8, 8: 4, 4: 2, 2: 1}


def train(wanted: Sequence[int], budget: int, where: str) -> tuple[int, ...]:
    """Return the width of each slot, given the widths that the devices want and the CPU's lanes.

    While they do not fit, the widest slot is halved, the last of equals first, as boards bifurcate them.
    Raises ConfigError if not even x1 fits for each.

    >>> train([16, 16, 16, 16], 40, "cpu0")
    (16, 8, 8, 8)
    >>> train([16] * 4, 48, "cpu0")
    (16, 16, 8, 8)
    """
    widths = list(wanted)
    for width in widths:
        if width not in (1, 2, 4, 8, 16):
            raise ConfigError(f"{where}: a slot must have 1, 2, 4, 8 or 16 lanes, got {width}")
    while sum(widths) > budget:
        widest = max(widths)
        if widest == 1:
            raise ConfigError(f"{where}: {len(widths)} devices need a lane each, got {budget} lanes")
        last = len(widths) - 1 - widths[::-1].index(widest)
        widths[last] = _NARROWER[widest]
    return tuple(widths)
