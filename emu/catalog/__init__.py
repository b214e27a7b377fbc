"""The catalogue: GPUs, CPUs, links, transports, switches, nodes, fabrics and clusters, with sources.

entries("gpus")             rows for a listing: each figure with its source
read("mine.toml")           the catalogue with a user's own file over it
"""

from emu.catalog.loader import Catalog, Entry, Figure, builtin, entries, read

__all__ = ["Catalog", "Entry", "Figure", "builtin", "entries", "read"]
