"""Communicators: the protocol that algorithms are written against, and the wires that carry it."""

from emu.comm.communicator import Comm, Request
from emu.comm.local import run_dry, run_local

__all__ = ["Comm", "Request", "run_dry", "run_local"]
