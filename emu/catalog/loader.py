"""Read the catalogue's TOML files, lay a user's own file over them, and look entries up by name."""

import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from emu.catalog.schema import KINDS, WORDS, check_table, nearest, plain, unknown
from emu.errors import ConfigError

_BUILTIN = "catalog"
_UNINHERITED = ("aliases", "note", "title")


@dataclass(frozen=True)
class Figure:
    """One figure as it is written, and where it comes from."""

    text: str
    source: str
    from_memory: bool


@dataclass(frozen=True)
class Entry:
    """One entry of the catalogue: `values` in SI units for building, `figures` as written for showing."""

    kind: str
    name: str
    where: str
    values: Mapping[str, Any]
    figures: Mapping[str, Figure]
    note: str = ""
    aliases: tuple[str, ...] = ()

    def need(self, *keys: str) -> None:
        """Raise ConfigError if one of these keys is not given."""
        for key in keys:
            if key not in self.values:
                raise ConfigError(f"{self.where}: needs the key {key!r}")


@dataclass(frozen=True)
class Catalog:
    """All tables, the user's over the built-in ones. `files` says for each (kind, name) where it was written."""

    tables: Mapping[str, Mapping[str, Any]]
    files: Mapping[tuple[str, str], str]
    sources: Mapping[str, Mapping[str, str]]

    def names(self, kind: str) -> list[str]:
        """Return all names of a kind, without aliases."""
        return list(self.tables[kind])

    def entry(self, kind: str, name: str, where: str | None = None) -> Entry:
        """Return an entry by its name or an alias; an unknown name lists the nearest ones."""
        key = self.canonical(kind, name)
        if key not in self.tables[kind]:
            place = where or kind
            raise ConfigError(f"{place}: {unknown(_singular(kind), name, self.known(kind))}")
        return self._entry(kind, key)

    def canonical(self, kind: str, name: str) -> str:
        """Return the name that an alias stands for, or the name itself."""
        return name if name in self.tables[kind] else self._aliases(kind).get(name, name)

    def known(self, kind: str) -> list[str]:
        """Return all names and aliases of a kind."""
        return [*self.tables[kind], *self._aliases(kind)]

    def where(self, kind: str, name: str) -> str:
        """Say where an entry is written: `mine.toml [gpus.mine]`."""
        return f"{self.files.get((kind, name), _BUILTIN)} [{kind}.{name}]"

    def _aliases(self, kind: str) -> dict[str, str]:
        pairs = ((alias, name) for name, raw in self.tables[kind].items() for alias in raw.get("aliases", ()))
        return dict(pairs)

    def _entry(self, kind: str, name: str) -> Entry:
        raw, where = self._inherited(kind, name, ()), self.where(kind, name)
        values = check_table(raw, KINDS[kind], where)
        note, aliases = values.pop("note", ""), values.pop("aliases", ())
        for word in ("base", "source", "title"):
            values.pop(word, None)
        return Entry(kind, name, where, values, dict(_figures(raw)), note, aliases)

    def _inherited(self, kind: str, name: str, below: tuple[str, ...]) -> dict[str, Any]:
        raw = self.tables[kind][name]
        written = raw.get("base")
        if written is None:
            return deepcopy(raw)
        base = self.canonical(kind, str(written))
        if base in (*below, name) or base not in self.tables[kind]:
            reason = "bases form a circle" if base in (*below, name) else unknown("base", base, self.known(kind))
            raise ConfigError(f"{self.where(kind, name)} base: {reason}")
        inherited = self._inherited(kind, base, (*below, name))
        for word in _UNINHERITED:
            inherited.pop(word, None)
        return merge(inherited, raw)


def merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another, key by key, tables within tables too; returns a new table."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both_tables = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = merge(old, value) if both_tables and "value" not in value else deepcopy(value)  # type: ignore[arg-type]
    return merged


@cache
def builtin() -> Catalog:
    """Return the catalogue that comes with emu."""
    tables: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    sources: dict[str, dict[str, str]] = {}
    for file in sorted(resources.files("emu.catalog").iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".toml"):
            continue
        for kind, entries_of_kind in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if kind == "sources":
                sources |= entries_of_kind
            elif kind in tables:
                tables[kind] |= entries_of_kind
    return Catalog(tables, {}, sources)


def read(path: str | Path) -> tuple[Catalog, dict[str, Any] | None]:
    """Lay a user's TOML file over the catalogue; return it and the file's own [cluster] table, if any.

    Every table and key of the file is checked here.
    """
    text = _read_text(Path(path))
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: must be TOML, got an error: {error}") from None
    base = builtin()
    tables = {kind: dict(base.tables[kind]) for kind in KINDS}
    files = dict(base.files)
    cluster = document.pop("cluster", None)
    for kind, group in document.items():
        if kind not in KINDS:
            raise ConfigError(f"{path}: {unknown('table', kind, ['cluster', *KINDS])}")
        if not isinstance(group, dict) or not all(isinstance(raw, dict) for raw in group.values()):
            raise ConfigError(f"{path} [{kind}]: must hold tables such as [{kind}.mine], got {group!r}")
        for written, raw in group.items():
            name = base.canonical(kind, written)
            tables[kind][name] = merge(tables[kind].get(name, {}), _sourced(raw, raw.get("source", str(path))))
            files[kind, name] = str(path)
    catalog = Catalog(tables, files, base.sources)
    for kind, name in files:
        catalog.entry(kind, name)
    if cluster is not None:
        check_table(cluster, KINDS["clusters"], f"{path} [cluster]")
    return catalog, cluster


def entries(kind: str, catalog: Catalog | None = None) -> list[Entry]:
    """Return every entry of a kind ("gpus", "links", …) in catalogue order, for a listing."""
    if kind not in KINDS:
        raise ConfigError(f"catalogue: {unknown('kind', kind, KINDS)}")
    source = catalog or builtin()
    return [source.entry(kind, name) for name in source.names(kind)]


def _singular(kind: str) -> str:
    return "switch" if kind == "switches" else kind[:-1]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


def _sourced(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Write beside each figure of a user's table where it comes from, so that it never looks like a published one."""
    sourced: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            sourced[key] = value if "value" in value else _sourced(value, source)
        elif key in WORDS or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
            sourced[key] = value
        else:
            sourced[key] = {"value": value, "source": source}
    return sourced


def _figures(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Figure]]:
    """Yield each figure with its source: its own, or else the entry's."""
    default = raw.get("source", "")
    for key, value in raw.items():
        if key in WORDS:
            continue
        if isinstance(value, dict) and "value" not in value:
            yield from _figures({"source": default, **value}, f"{prefix}{key}.")
            continue
        own = value if isinstance(value, dict) else {}
        yield (
            prefix + key,
            Figure(_text(plain(value)), own.get("source", default), bool(own.get("from_memory", False))),
        )


def _text(value: Any) -> str:
    """Write a value as a table shows it: a list of tables as `name sw0, gpus 0 1; ...`."""
    if isinstance(value, list):
        return ("; " if value and isinstance(value[0], dict) else " ").join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    return str(value)


__all__ = ["Catalog", "Entry", "Figure", "builtin", "entries", "merge", "nearest", "read"]
