"""The root of a rooted collective."""

from emu.errors import ConfigError


def checked_root(where: str, root: int, p: int) -> int:
    """Return `root` if it is a rank of p; raise ConfigError otherwise."""
    if not 0 <= root < p:
        raise ConfigError(f"{where}: root must be a rank from 0 to {p - 1}, got {root}; choose one of these")
    return root
