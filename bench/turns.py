"""Jobs of several ranks that take turns on one machine: while one works, the others sleep.

A change of the host's load so meets all of them alike. A rank sleeps in a read from a pipe, not in a communication
library, which would poll and take the core from the one whose turn it is.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class Job:
    """A job whose ranks run `turns` below; started at once, asleep until its first turn."""

    def __init__(self, folder: Path, ranks: int, line: Sequence[str], environment: Mapping[str, str]) -> None:
        folder.mkdir()
        pipes = [(folder / f"go-{rank}", folder / f"done-{rank}") for rank in range(ranks)]
        for pipe in pipes:
            for each in pipe:
                os.mkfifo(each)
        self.process = subprocess.Popen([*line, str(folder)], env=dict(environment), stdout=subprocess.DEVNULL)
        self.go = [open(go, "w") for go, _ in pipes]
        self.done = [open(done) for _, done in pipes]

    def turn(self) -> Any:
        """Let the ranks work once; return what rank 0 tells. Raise RuntimeError for a job that has died."""
        for go in self.go:
            go.write("go\n")
            go.flush()
        told = [done.readline() for done in self.done]
        if not all(told):
            raise RuntimeError(f"a job ended in the middle of its turn, with status {self.process.wait()}")
        return json.loads(told[0])

    def end(self) -> None:
        """Let the ranks end."""
        for go in self.go:
            go.close()
        self.process.wait(timeout=60)
        for done in self.done:
            done.close()


def turns(folder: Path, rank: int) -> Iterator[list[Any]]:
    """Yield a list once a turn, as one rank of a job; what it holds at the turn's end is told, as JSON."""
    with open(folder / f"go-{rank}") as go, open(folder / f"done-{rank}", "w") as done:
        for _ in go:
            told: list[Any] = []
            yield told
            done.write(json.dumps(told) + "\n")
            done.flush()
