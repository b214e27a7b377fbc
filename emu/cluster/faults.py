"""Unevenness and faults, declared with the cluster: slow GPUs, jitter, degraded or flapping links, pauses, deaths.

Each can be written as a string, as on a command line, or as a table:

| what    | string                            | table                                             |
|---------|-----------------------------------|---------------------------------------------------|
| slow    | "3:0.5", "4-7:0.9"                | { "3" = 0.5 }                                     |
| degrade | "node0.nic0:0.25@1 ms..5 ms"      | { link, factor, start, end }                      |
| flap    | "node0.nic0:100 ms/10 ms@1 s"     | { link, period, down, start }                     |
| pause   | "3@10 ms+5 ms"                    | { rank, at, for }                                 |
| death   | "3@10 ms"                         | { rank, at }                                      |
| jitter  | "compute=0.05, latency=0.1, seed=7" | { compute, latency, seed }                      |

What they do to a timeline is the engine's business.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from emu.catalog.schema import plain, unknown
from emu.errors import ConfigError
from emu.units import parse_count, parse_fraction, parse_number, parse_time

T = TypeVar("T")
KINDS = ("slow", "degrade", "flap", "pause", "death", "jitter")


@dataclass(frozen=True)
class Slow:
    """GPUs that compute at `factor` of their speed (above 1: faster)."""

    first: int
    last: int
    factor: float


@dataclass(frozen=True)
class Degradation:
    """Links at `factor` of their bandwidth from `start_s` to `end_s`. `link` is a name, its first parts, or a glob."""

    link: str
    factor: float
    start_s: float = 0.0
    end_s: float = math.inf

    @property
    def permanent(self) -> bool:
        return self.start_s == 0 and self.end_s == math.inf


@dataclass(frozen=True)
class Flap:
    """Links that carry nothing for `down_s` at the beginning of every `period_s`, from `start_s` on."""

    link: str
    period_s: float
    down_s: float
    start_s: float = 0.0


@dataclass(frozen=True)
class Pause:
    """A rank that starts nothing new between `at_s` and `at_s + duration_s`."""

    rank: int
    at_s: float
    duration_s: float


@dataclass(frozen=True)
class Death:
    """A rank that ends at `at_s`."""

    rank: int
    at_s: float


@dataclass(frozen=True)
class Jitter:
    """Seeded noise: relative standard deviations of a kernel's duration and of a message's latency."""

    compute: float = 0.0
    latency: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Faults:
    """All declared faults of a cluster; empty for a healthy one."""

    slow: tuple[Slow, ...] = ()
    degradations: tuple[Degradation, ...] = ()
    flaps: tuple[Flap, ...] = ()
    pauses: tuple[Pause, ...] = ()
    deaths: tuple[Death, ...] = ()
    jitter: Jitter | None = None

    def speed(self, rank: int) -> float:
        """Return the product of all factors declared for a rank; 1.0 where there is none."""
        return math.prod(slow.factor for slow in self.slow if slow.first <= rank <= slow.last)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> "Faults":
        """Read a [faults] table, or settings of the same names; every value is checked."""
        for key in table:
            if key not in KINDS:
                raise ConfigError(f"{where}: {unknown('fault', key, KINDS)}")
        slow = table.get("slow", ())
        if isinstance(slow, Mapping) and "value" not in slow:
            slow = [f"{ranks}:{factor}" for ranks, factor in slow.items()]
        return cls(
            _each(slow, _slow, f"{where} slow"),
            _each(table.get("degrade", ()), _degradation, f"{where} degrade"),
            _each(table.get("flap", ()), _flap, f"{where} flap"),
            _each(table.get("pause", ()), _pause, f"{where} pause"),
            _each(table.get("death", ()), _death, f"{where} death"),
            _jitter(table["jitter"], f"{where} jitter") if "jitter" in table else None,
        )

    def ranks(self) -> Iterable[tuple[str, int]]:
        """Yield (kind, highest rank) of each fault that names a rank."""
        yield from (("slow", slow.last) for slow in self.slow)
        yield from (("pause", pause.rank) for pause in self.pauses)
        yield from (("death", death.rank) for death in self.deaths)


def _each(value: Any, read: Callable[[Any, str], T], where: str) -> tuple[T, ...]:
    """Read one fault, several in a list, or several in a string with semicolons or commas between."""
    value = plain(value)
    if isinstance(value, str):
        value = [part.strip() for part in value.replace(";", ",").split(",")]
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: must be a string, a table or a list of them, got {value!r}")
    return tuple(read(item, where) for item in value)


def _slow(item: Any, where: str) -> Slow:
    if isinstance(item, Mapping):
        _check_keys(item, ("rank", "factor"), where)
        ranks, factor = str(item["rank"]), item["factor"]
    else:
        ranks, factor = _halves(item, ":", where, "3:0.5: rank 3 at half its speed")
    first, last = _rank_range(ranks, where)
    number = parse_number(factor, where)
    if number <= 0:
        raise ConfigError(f"{where}: a speed must be above zero, got {item!r}; a rank that stops is a death")
    return Slow(first, last, number)


def _degradation(item: Any, where: str) -> Degradation:
    if isinstance(item, Mapping):
        _check_keys(item, ("link", "factor"), where, ("start", "end"))
        start, end = item.get("start"), item.get("end")
        link, factor = item["link"], item["factor"]
    else:
        link, rest = _halves(item, ":", where, "node0.nic0:0.25: a quarter of its bandwidth")
        factor, _, span = rest.partition("@")
        start, _, end = (part.strip() or None for part in span.partition(".."))
    begin_s = parse_time(start, where, zero=True) if start else 0.0
    end_s = parse_time(end, where) if end else math.inf
    if end_s <= begin_s:
        raise ConfigError(f"{where}: must end after it starts, got {item!r}")
    return Degradation(str(link).strip(), parse_fraction(factor, where), begin_s, end_s)


def _flap(item: Any, where: str) -> Flap:
    if isinstance(item, Mapping):
        _check_keys(item, ("link", "period", "down"), where, ("start",))
        link, period, down, start = item["link"], item["period"], item["down"], item.get("start")
    else:
        link, rest = _halves(item, ":", where, "node0.nic0:100 ms/10 ms: down for 10 ms of every 100 ms")
        times, _, start = rest.partition("@")
        period, down = _halves(times, "/", where, "node0.nic0:100 ms/10 ms: down for 10 ms of every 100 ms")
    period_s, down_s = parse_time(period, where), parse_time(down, where)
    if down_s >= period_s:
        raise ConfigError(f"{where}: a link must be up for a part of each period, got {item!r}")
    return Flap(str(link).strip(), period_s, down_s, parse_time(start, where, zero=True) if start else 0.0)


def _pause(item: Any, where: str) -> Pause:
    if isinstance(item, Mapping):
        _check_keys(item, ("rank", "at", "for"), where)
        rank, at, duration = item["rank"], item["at"], item["for"]
    else:
        rank, times = _halves(item, "@", where, "3@10 ms+5 ms: rank 3 pauses at 10 ms for 5 ms")
        at, duration = _halves(times, "+", where, "3@10 ms+5 ms: rank 3 pauses at 10 ms for 5 ms")
    return Pause(parse_count(rank, where, least=0), parse_time(at, where, zero=True), parse_time(duration, where))


def _death(item: Any, where: str) -> Death:
    if isinstance(item, Mapping):
        _check_keys(item, ("rank", "at"), where)
        rank, at = item["rank"], item["at"]
    else:
        rank, at = _halves(item, "@", where, "3@10 ms: rank 3 dies at 10 ms")
    return Death(parse_count(rank, where, least=0), parse_time(at, where, zero=True))


def _jitter(item: Any, where: str) -> Jitter:
    item = plain(item)
    if isinstance(item, str) and "=" in item:
        item = dict(_halves(part, "=", where, "compute=0.05, seed=7") for part in item.split(","))
    if not isinstance(item, Mapping):
        item = {"compute": item}
    item = {str(key).strip(): value for key, value in item.items()}
    _check_keys(item, (), where, ("compute", "latency", "seed"))
    shares = {key: parse_number(item[key], where) for key in ("compute", "latency") if key in item}
    for key, share in shares.items():
        if not 0 <= share < 1:
            raise ConfigError(f"{where} {key}: must be at least 0 and below 1, got {item[key]!r}")
    return Jitter(**shares, seed=parse_count(item.get("seed", 0), f"{where} seed", least=0))


def _check_keys(item: Mapping[str, Any], needed: tuple[str, ...], where: str, more: tuple[str, ...] = ()) -> None:
    for key in item:
        if key not in (*needed, *more):
            raise ConfigError(f"{where}: {unknown('key', key, (*needed, *more))}")
    for key in needed:
        if key not in item:
            raise ConfigError(f"{where}: needs the key {key!r}")


def _halves(item: Any, mark: str, where: str, example: str) -> tuple[str, str]:
    """Split at the mark; the error shows an example."""
    if not isinstance(item, str) or item.count(mark) != 1:
        raise ConfigError(f"{where}: must be such as {example}, got {item!r}")
    left, right = (part.strip() for part in item.split(mark))
    if not left or not right:
        raise ConfigError(f"{where}: must be such as {example}, got {item!r}")
    return left, right


def _rank_range(text: str, where: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    low = parse_count(first, where, least=0)
    high = parse_count(last, where, least=0) if dash else low
    if high < low:
        raise ConfigError(f"{where}: a range of ranks must rise, got {text!r}")
    return low, high
