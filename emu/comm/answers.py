"""Questions of time and order that a program asks while it runs, and who answers them.

A question is what the program can't know without a clock: the time, which message came first, whether one has come.
`HostAnswers` answers by what happened in this run; `EngineAnswers` asks an engine that stands beside the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from emu.comm.communicator import Comm
from emu.errors import ConfigError
from emu.trace import ANY

POLL_S = 0.5e-6  # emulated time of a poll that finds nothing
POLL_SHARE = 0.02  # and its share of the time that has been spent on polls in a row
FREE_POLLS = 2  # so many in a row take no time


class Answers(Protocol):
    """Answers what a program asks about time and order."""

    def now_s(self, comm: Comm) -> float:
        """Return the emulated time at which the rank's program stands."""

    def wait(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Return when all requests are done; who comes first decides any-source receives."""

    def test(self, comm: Comm, requests: Sequence[Any]) -> list[bool]:
        """Tell which of these requests are done by now."""

    def first(self, comm: Comm, requests: Sequence[Any]) -> list[int]:
        """Wait until one is done; return the places of all that are done then."""

    def probe(self, comm: Comm, source: int, tag: int, block: bool, take: bool) -> Any:
        """Return the message that a receive would get now (`block`: first)."""

    def meet(self, comm: Comm, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give every member a value, get what `work` makes of all; nobody goes on before the last has come."""


class HostAnswers:
    """Answers by what has happened in this run, where no engine stands beside the program."""

    def now_s(self, comm: Comm) -> float:
        """Raise ConfigError: without an engine there is no time yet."""
        raise ConfigError("time: a run with a cluster is expected, got none; start the program with emu.run or emu run")

    def wait(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Return when all are done."""
        comm.wire.wait([request.pending for request in requests])

    def test(self, comm: Comm, requests: Sequence[Any]) -> list[bool]:
        """Tell which are done."""
        return [comm.wire.test(request.pending) for request in requests]

    def first(self, comm: Comm, requests: Sequence[Any]) -> list[int]:
        """Wait until one is done."""
        return comm.wire.wait_any([request.pending for request in requests])

    def probe(self, comm: Comm, source: int, tag: int, block: bool, take: bool) -> Any:
        """Look at what has been sent."""
        return comm.wire.probe(source, tag, block, take)

    def meet(self, comm: Comm, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Exchange values."""
        return comm.wire.exchange(value, work)


class Beside(Protocol):
    """The engine beside a program, as one rank sees it."""

    def ask(self, question: Any, told: Callable[[], str]) -> Any:
        """Suspend the rank until the engine has the answer."""

    def waits(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Note which requests the rank is about to wait for; none: it goes on."""


def _is_held(pending: Any) -> bool:
    return getattr(pending, "held", False)


class EngineAnswers:
    """One rank's questions to an engine."""

    def __init__(self, engine: Beside) -> None:
        self.engine = engine
        self.asked = False  # by this rank, or one that it has met since: before that, ranks that meet need no time
        self._polls = 0  # in a row, without anything recorded between
        self._polling_since_s = 0.0
        self._log_at = -1

    def ask(self, question: Any, told: Callable[[], str]) -> Any:
        """Return the engine's answer; told() says what the rank waits for."""
        self.asked = True
        return self.engine.ask(question, told)

    def now_s(self, comm: Comm) -> float:
        """Return the time; a program that does nothing but ask is moved on."""
        answer = self._poll(comm, (), None)
        return answer.time_s

    def wait(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Return when all are done."""
        if comm.wire.held:
            fresh = [request for request in requests if not request.done]
            if fresh:
                self._settle(comm, fresh, self._ask(comm, fresh, need=len(fresh)))
        self.engine.waits(comm, requests)
        comm.wire.wait([request.pending for request in requests])
        self.engine.waits(comm, ())

    def test(self, comm: Comm, requests: Sequence[Any]) -> list[bool]:
        """Tell which are done by now."""
        if all(request.done for request in requests):
            return [True] * len(requests)
        answer = self._poll(comm, requests, None)
        self._settle(comm, requests, answer)
        done = [i in answer.done for i in range(len(requests))]
        comm.wire.wait([request.pending for request, ready in zip(requests, done, strict=True) if ready])
        return done

    def first(self, comm: Comm, requests: Sequence[Any]) -> list[int]:
        """Wait until one is done."""
        answer = self._ask(comm, requests, need=1)
        self._settle(comm, requests, answer)
        return list(answer.done)

    def probe(self, comm: Comm, source: int, tag: int, block: bool, take: bool) -> Any:
        """Look for the message whose announcement has come first."""
        world_source = source if source == ANY else comm.group[source]
        probe = (world_source, tag, comm.context)
        if block:
            answer = self.ask(self._question(comm, probe=probe), lambda: "a message to come")
            comm.log.reach(answer.time_s)
        else:
            answer = self._poll(comm, (), probe)
        if not answer.sources:
            return None
        return comm.wire.probe(comm.group.index(answer.sources[0]), answer.tags[0], block=True, take=take)

    def meet(self, comm: Comm, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Exchange values; all go on from the time at which the last one came, if one of them has ever asked."""
        told = comm.wire.exchange((self.asked, value))
        if any(asked for asked, _ in told):
            self.asked = True
            time_s = self.ask(self._question(comm), lambda: "the time").time_s
            latest_s = max(comm.wire.exchange(time_s))
            if latest_s > time_s:
                comm.log.reach(latest_s)
        return work([each for _, each in told])

    def _settle(self, comm: Comm, requests: Sequence[Any], answer: Any) -> None:
        """Match receives from any source with the messages that the engine has chosen."""
        for k, source, tag in zip(answer.done, answer.sources, answer.tags, strict=True):
            pending = requests[k].pending
            if _is_held(pending):
                comm.wire.choose(pending, comm.group.index(source), tag)
        if comm.wire.held:
            self._release(comm, [r.pending for r in requests if _is_held(r.pending)])

    def _release(self, comm: Comm, wanted: Sequence[Any]) -> None:
        """Post receives from known ranks that were held back behind others that are still open."""
        for pending in wanted:
            if pending.source != ANY:
                comm.wire.choose(pending, pending.source, pending.tag)

    def _ask(self, comm: Comm, requests: Sequence[Any], need: int) -> Any:
        return self.ask(self._question(comm, requests, need), lambda: "its messages")

    def _question(
        self, comm: Comm, requests: Sequence[Any] = (), need: int = 0, probe: Any = None,
        deadline_s: float = math.inf,
    ) -> Any:  # fmt: skip
        from emu.engine.questions import Question

        log = comm.log
        stream = requests[0].stream if requests else log.stream
        if any(request.stream != stream for request in requests):
            raise ConfigError("requests: those of one stream are expected; wait for each stream's on its own")
        back = tuple(log.posted[stream] - request.number for request in requests)
        return Question(log.rank, stream, back, need, probe, deadline_s)

    def _poll(self, comm: Comm, requests: Sequence[Any], probe: Any) -> Any:
        """Ask what is so now. Polls in a row take emulated time, or a program that polls would never get on."""
        log = comm.log
        if len(log.data) != self._log_at:
            self._polls = 0
        self._polls += 1
        question = self._question(comm, requests, probe=probe, deadline_s=-math.inf)
        answer = self.ask(question, lambda: "the time")
        if self._polls == 1:
            self._polling_since_s = answer.time_s
        if self._polls > FREE_POLLS and not answer.done and not answer.sources:
            step_s = max(POLL_S, POLL_SHARE * (answer.time_s - self._polling_since_s))
            question = self._question(comm, requests, 1, probe, answer.time_s + step_s)
            answer = self.ask(question, lambda: "the time")
            log.reach(answer.time_s)
        self._log_at = len(log.data)
        return answer
