"""Quantities as people write them: "400 Gb/s", "2 us", "25 MiB", "19.5 TFLOPS".

Strings with units stand at the edge, SI base units inside (bytes, seconds, bytes/s, FLOP/s). A bit is not a
byte: "Gb/s" is bits, "GB/s" bytes. Decimal prefixes (k M G T P) are powers of 1000, binary ones (Ki Mi Gi Ti)
powers of 1024. Which options exist and what they are for is not this module's business.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from emu.errors import ConfigError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIX = {**_DECIMAL, **_BINARY}

_BYTES = {f"{prefix}B": scale for prefix, scale in _PREFIX.items()} | {"byte": 1.0, "bytes": 1.0}
_BANDWIDTH = {f"{prefix}B/s": scale for prefix, scale in _PREFIX.items()}
for _bit in ("b/s", "bit/s", "bps"):
    _BANDWIDTH |= {f"{prefix}{_bit}": scale / 8 for prefix, scale in _PREFIX.items()}
_TIME = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "ps": 1e-12,
    "min": 60.0, "h": 3600.0,
}  # fmt: skip
_FLOPS = {
    f"{prefix}{unit}": scale
    for prefix, scale in _DECIMAL.items()
    for unit in ("FLOPS", "FLOP/s", "Flop/s", "OPS")
}
_POWER = {"W": 1.0, "kW": 1e3, "MW": 1e6}

_NUMBER = re.compile(
    r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?nan|[+-]?inf(?:inity)?)\s*(.*?)\s*"
)


def parse_bytes(text: str | int, where: str = "size", *, zero: bool = False) -> int:
    """Return a number of bytes; a plain integer is bytes already.

    >>> parse_bytes("25 MiB"), parse_bytes("1.5 kB"), parse_bytes(4096)
    (26214400, 1500, 4096)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        value = float(text)
    elif isinstance(text, str) and re.fullmatch(r"\s*0+\s*", text) and not zero:
        value = 0.0
    else:
        value = _parse(text, _BYTES, where, "a size such as '25 MiB'", True)
    if value == 0 and not zero:
        raise ConfigError(f"{where}: at least 1 byte is expected, got {text!r}; write a size such as '25 MiB'")
    _check_sign(value, text, where, zero)
    if value != int(value):
        raise ConfigError(f"{where}: must be a whole number of bytes, got {text!r}")
    return int(value)


def parse_bandwidth(text: str, where: str = "bandwidth") -> float:
    """Return bytes a second, per direction.

    >>> parse_bandwidth("100 Gb/s"), parse_bandwidth("12.5 GB/s")
    (12500000000.0, 12500000000.0)
    """
    return _parse(
        text, _BANDWIDTH, where, "a bandwidth such as '100 Gb/s' (bits) or '12.5 GB/s' (bytes)", False
    )


def parse_time(text: str, where: str = "time", *, zero: bool = False, such_as: str = "2 us") -> float:
    """Return seconds; an error shows a time `such_as` the one that is expected.

    >>> parse_time("2 us"), parse_time("200 ms")
    (2e-06, 0.2)
    """
    return _parse(text, _TIME, where, f"a time such as {such_as!r}", zero)


def parse_flops(text: str, where: str = "FLOPS") -> float:
    """Return operations a second.

    >>> parse_flops("19.5 TFLOPS")
    19500000000000.0
    """
    return _parse(text, _FLOPS, where, "a rate such as '19.5 TFLOPS'", False)


def parse_power(text: str, where: str = "power") -> float:
    """Return watts.

    >>> parse_power("10.2 kW")
    10200.0
    """
    return _parse(text, _POWER, where, "a power such as '400 W'", False)


def parse_fraction(value: object, where: str = "fraction") -> float:
    """Return a number above 0 and at most 1.

    >>> parse_fraction(0.85), parse_fraction("85 %")
    (0.85, 0.85)
    """
    number = parse_number(value, where)
    if not 0 < number <= 1:
        raise ConfigError(f"{where}: must be above 0 and at most 1, got {value!r}")
    return number


def parse_number(value: object, where: str = "number") -> float:
    """Return a finite number without unit; a string may end in a percent sign."""
    try:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, str) and value.rstrip().endswith("%"):
            number = float(value.rstrip()[:-1]) / 100
        else:
            number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ConfigError(f"{where}: must be a finite number, got {value!r}")
    return number


def parse_count(value: object, where: str = "count", *, least: int = 1) -> int:
    """Return a whole number of at least `least`; digits in a string will do."""
    number = parse_number(value, where)
    if number != int(number) or number < least:
        raise ConfigError(f"{where}: must be a whole number of at least {least}, got {value!r}")
    return int(number)


def counted(count: int, thing: str) -> str:
    """Write a number of things.

    >>> counted(1, "step"), counted(20, "step"), counted(2, "micro-batch")
    ('1 step', '20 steps', '2 micro-batches')
    """
    plural = "es" if thing.endswith(("ch", "s", "x")) else "s"
    return f"{count} {thing}{plural * (count != 1)}"


def format_bytes(count: float) -> str:
    """Write a size in binary units where they are exact, in decimal units elsewhere.

    >>> format_bytes(26214400), format_bytes(25_000_000), format_bytes(12)
    ('25 MiB', '25 MB', '12 B')
    """
    fitting = [(scale, prefix) for prefix, scale in _BINARY.items() if scale <= count]
    if fitting:
        scale, prefix = max(fitting)
        if count % (scale / 4) == 0:
            return f"{count / scale:g} {prefix}B"
    return _scaled(count, "B")


def format_bandwidth(bytes_per_s: float, *, bits: bool = False) -> str:
    """Write a bandwidth in bytes a second, or in bits a second.

    >>> format_bandwidth(12.5e9), format_bandwidth(12.5e9, bits=True)
    ('12.5 GB/s', '100 Gb/s')
    """
    return _scaled(bytes_per_s * 8, "b/s") if bits else _scaled(bytes_per_s, "B/s")


def format_time(seconds: float) -> str:
    """Write a time with four digits.

    >>> format_time(0.0000125), format_time(1.5), format_time(0)
    ('12.5 us', '1.5 s', '0 s')
    """
    size = abs(seconds)
    if size == 0 or not math.isfinite(size) or size >= 1:
        return f"{seconds:.4g} s"
    for unit, scale in (("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if size >= scale * (1 - 1e-9):
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def format_flops(flops_per_s: float) -> str:
    """Write a rate of operations.

    >>> format_flops(19.5e12)
    '19.5 TFLOPS'
    """
    return _scaled(flops_per_s, "FLOPS")


def _scaled(value: float, unit: str) -> str:
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if abs(value) >= _DECIMAL[prefix] * (1 - 1e-9):
            return f"{value / _DECIMAL[prefix]:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _parse(text: object, units: Mapping[str, float], where: str, example: str, zero: bool) -> float:
    if not isinstance(text, str):
        raise ConfigError(f"{where}: must be {example} with its unit, in quotes, got {text!r}")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: must be {example}, got {text!r}")
    number, unit = Decimal(match[1].replace("_", "")), match[2]
    if not unit:
        raise ConfigError(f"{where}: has no unit, got {text!r}; write {example}")
    if unit not in units:
        raise ConfigError(f"{where}: unknown unit {unit!r} in {text!r}; write {example}{_near(unit, units)}")
    value = float(number * Decimal(repr(units[unit])))  # "5 us" is the float 5e-06, to the last bit
    _check_sign(value, text, where, zero)
    return value


def _near(unit: str, units: Mapping[str, float]) -> str:
    """Name the units that differ from what was written by case alone."""
    same = [known for known in units if known.lower() == unit.lower()]
    return f"; did you mean {' or '.join(map(repr, same))}?" if same else ""


def _check_sign(value: float, text: object, where: str, zero: bool) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{where}: must be a finite number, got {text!r}")
    if value < 0:
        raise ConfigError(f"{where}: must not be negative, got {text!r}")
    if value == 0 and not zero:
        raise ConfigError(f"{where}: must be above zero, got {text!r}")
