"""The referee's process: started by rank 0 beside the job, reached by every stream of every rank over a socket.

It imports no MPI, and it ends when all ranks have left.
"""

from __future__ import annotations

import gc
import pickle
import secrets
import selectors
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emu.wall import frames as F
from emu.wall.governor import Governor
from emu.wall.hosts import LOOPBACK, addresses, doors
from emu.wall.pace import now, sharpen
from emu.wall.referee import Lane, Referee

_START = "from emu.wall.agent import serve; serve()"


@dataclass(frozen=True)
class Address:
    """Where the referee may be reached, and the word by which it knows its own job's ranks."""

    hosts: tuple[str, ...]
    port: int
    word: bytes


@dataclass(frozen=True)
class Task:
    """What the referee needs to know."""

    cluster: Any
    ranks: int
    profile: str
    dilation: float
    auto: bool
    everywhere: bool  # whether ranks on other hosts are to reach it
    word: bytes


def start(
    cluster: Any, ranks: int, profile: str, dilation: float, auto: bool, everywhere: bool
) -> tuple[subprocess.Popen, Address]:
    """Start the referee's process; it listens when this returns."""
    task = Task(cluster, ranks, profile, dilation, auto, everywhere, secrets.token_bytes(16))
    process = subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    pickle.dump(task, process.stdin)
    process.stdin.close()
    line = process.stdout.readline().split()
    if not line:
        raise RuntimeError("the wall clock's referee ended before it began")
    return process, Address((LOOPBACK, *(addresses() if everywhere else ())), int(line[0]), task.word)


def serve() -> None:
    """Be the referee: read the task from stdin, say the port on stdout, serve until all have left."""
    task: Task = pickle.load(sys.stdin.buffer)
    listeners = doors("" if task.everywhere else LOOPBACK, task.word)
    sys.stdout.write(f"{listeners[0].getsockname()[1]}\n")
    sys.stdout.flush()
    from emu.engine.live import Live

    model = Live(task.cluster, task.ranks, task.profile)
    model.warm()
    governor = Governor() if task.auto else None
    sharpen()
    _Server(listeners, task, Referee(model, task.ranks, task.dilation, governor)).run()


class _Server:
    """Reads what all streams say, lets the referee settle it, and ends when everyone has left."""

    def __init__(self, listeners: Sequence[socket.socket], task: Task, referee: Referee) -> None:
        self.task, self.referee = task, referee
        self.selector = selectors.DefaultSelector()
        for listener in listeners:
            self.selector.register(listener, selectors.EVENT_READ, None)
        self.open = 0
        self.joined = False

    def run(self) -> None:
        gc.disable()  # a pause of the collector would be lateness of all ranks
        while self.open or not self.joined:
            for key, _ in self.selector.select():
                if key.data is None:
                    self._accept(key.fileobj)
                else:
                    key.data.read(self)
            self.referee.settle()

    def _accept(self, listener: Any) -> None:
        connection, _ = listener.accept()
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(connection, selectors.EVENT_READ, _Connection(connection))
        self.open += 1

    def close(self, connection: _Connection) -> None:
        self.selector.unregister(connection.socket)
        connection.socket.close()
        self.open -= 1
        if connection.lane is not None:
            self.referee.leave(connection.lane)


class _Connection:
    """One stream's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.buffer = bytearray()
        self.lane: Lane | None = None

    def read(self, server: _Server) -> None:
        """Hear what has come; a stranger or a closed connection is let go."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            server.close(self)
            return
        self.buffer += data
        for said in F.take_said(self.buffer):
            if said.kind == F.CLOCK_ASK:
                self.tell(F.Told(F.CLOCK, now()).frame())
            elif self.lane is None:
                if said.kind != F.HELLO or said.payload != server.task.word:
                    server.close(self)
                    return
                self.lane = server.referee.join(said.number, said.stream, self.tell)
                server.joined = True
            else:
                server.referee.hear(self.lane, said)

    def tell(self, frame: bytes) -> None:
        """Send a frame. A stream that has gone is heard of when its connection is read."""
        try:
            self.socket.sendall(frame)
        except OSError:
            pass
