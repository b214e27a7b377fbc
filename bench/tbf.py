"""The kernel's own shaping as a reference: a TCP stream between two network namespaces, through `tc tbf`.

`python -m bench.tbf receive|send ...` is one of its ends. A frame of 1514 bytes carries 1448 of payload, and `tbf`
counts the whole frame.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PORT = 29517
ADDRESSES = ("10.98.0.1", "10.98.0.2")
BURST = "16kb"  # small, so that the first bytes don't pass unshaped


def why_not() -> str:
    """Return why this machine can't shape its links, empty if it can."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"needs the programs {' and '.join(missing)} (package iproute2)"
    return "" if os.geteuid() == 0 else "needs root"


def transfer_s(rate_bits_per_s: float, nbytes: int) -> float:
    """Return how long `nbytes` take through `tc tbf` at a rate, from the first byte sent to the last received."""
    with _hosts(rate_bits_per_s) as (sender, receiver):
        end = _on(receiver, "receive", str(nbytes))
        assert end.stdout is not None
        end.stdout.readline()  # it listens
        began = float(_on(sender, "send", str(nbytes)).communicate()[0])
        return float(end.communicate()[0]) - began


@contextmanager
def _hosts(rate_bits_per_s: float) -> Iterator[tuple[str, str]]:
    names = (f"emu{os.getpid()}-a", f"emu{os.getpid()}-b")
    try:
        for name in names:
            _run(f"ip netns add {name}")
        _run(f"ip link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}")
        for name, address in zip(names, ADDRESSES, strict=True):
            _run(f"ip -n {name} address add {address}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"tc -n {name} qdisc add dev eth0 root tbf rate {rate_bits_per_s:.0f}bit burst {BURST} latency 100ms")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _on(name: str, *words: str) -> subprocess.Popen:
    line = ["ip", "netns", "exec", name, sys.executable, "-m", "bench.tbf", *words]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def _run(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True)


def _send(nbytes: int) -> None:
    with socket.create_connection((ADDRESSES[1], PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = bytes(nbytes)
        time.sleep(0.2)  # the receiver waits, and the bucket is full
        print(time.monotonic(), flush=True)
        connection.sendall(data)


def _receive(nbytes: int) -> None:
    with socket.create_server((ADDRESSES[1], PORT)) as listener:
        print("listening", flush=True)
        connection, _ = listener.accept()
        with connection:
            left, buffer = nbytes, memoryview(bytearray(1 << 20))
            while left:
                got = connection.recv_into(buffer)
                if not got:
                    sys.exit("the sender went before its last byte")
                left -= got
    print(time.monotonic(), flush=True)


if __name__ == "__main__":
    {"send": _send, "receive": _receive}[sys.argv[1]](int(sys.argv[2]))
