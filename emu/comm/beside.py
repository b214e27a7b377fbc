"""The engine beside a program whose ranks share a process: fed with what they record, it answers their questions.

A rank that asks is suspended. When all ranks ask, wait for each other or have ended, the engine advances to the
earliest answer, and that rank runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import greenlet

from emu.comm.calls import spill
from emu.comm.recording import Log, Tables
from emu.comm.world import World
from emu.errors import DeadlockError


@dataclass
class Asked:
    """A question, who waits for the answer, and the answer."""

    question: Any
    waiter: greenlet.greenlet
    answer: Any = None


class EngineBeside:
    """Answers the questions of one World. The engine is made when the first one is asked."""

    def __init__(self, world: World, logs: Sequence[Log], cluster: Any, profile: str) -> None:
        self.world, self.logs, self.cluster, self.profile = world, logs, cluster, profile
        self.asked: list[Asked] = []
        self.engine: Any = None
        self._declared = [0, 0, 0]
        world.answer = self.answer
        world.holds = True

    @property
    def marks(self) -> dict[str, str]:
        """What the trace must say of the answers that are in it."""
        return {"order": self.cluster.name} if self.engine is not None else {}

    def ask(self, question: Any, told: Callable[[], str]) -> Any:
        """Suspend the running rank until its question is answered."""
        asked = Asked(question, greenlet.getcurrent())
        self.asked.append(asked)
        while asked.answer is None:
            self.world.block(told)
        return asked.answer

    def waits(self, comm: Any, requests: Sequence[Any]) -> None:
        """Nothing to note: the world knows who waits."""

    def answer(self, world: World) -> bool:
        """Answer one question; tell whether there was one."""
        if not self.asked:
            return False
        self._feed()
        self.asked.sort(key=lambda asked: asked.question.rank)
        try:
            which, answer = self.engine.advance([asked.question for asked in self.asked])
        except DeadlockError as error:
            raise DeadlockError(f"{world.describe()} ({error})") from None
        asked = self.asked.pop(which)
        asked.answer = answer
        world.ready.append(asked.waiter)
        return True

    def _feed(self) -> None:
        """Tell the engine what has been recorded since the last question."""
        if self.engine is None:
            from emu.engine import Engine

            self.engine = Engine(self.cluster, self.world.size, profile=self.profile, detail="totals")
        for log in self.logs:
            spill(log)
        tables: Tables = self.logs[0].tables
        known = self._declared
        labels, groups = list(tables.labels), list(tables.groups)
        self.engine.declare(labels[known[0] :], tables.templates[known[1] :], groups[known[2] :])
        self._declared = [len(labels), len(tables.templates), len(groups)]
        for log in self.logs:
            fresh = log.ship()
            if len(fresh):
                self.engine.extend(log.rank, fresh)
