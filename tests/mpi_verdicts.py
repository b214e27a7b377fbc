"""A pytest plugin that makes a test under mpirun one test, with one verdict.

Each rank runs pytest; a failing assertion on one of them would leave the others waiting in MPI. So after each
phase of a test the ranks exchange their verdicts: a failure anywhere is a failure everywhere, shown with the
traceback of the rank that failed, and ends the run. If some rank does not come to the exchange, the failing
one prints its traceback and aborts the job. A test that outlasts its limit prints the stacks of every rank.
"""

import faulthandler
import os
import sys
import threading
import time

import pytest

GRACE_S = 3.0  # how long the others may take to end a test that has failed somewhere
LIMIT_S = 60.0  # of one test, unless it is marked `timeout(seconds)`
_TAG = 1


@pytest.hookimpl(trylast=True)  # the terminal reporter must be there
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-mpi", False):
        from mpi4py import MPI

        if MPI.COMM_WORLD.size > 1:
            config.pluginmanager.register(Verdicts(config, MPI.COMM_WORLD), "mpi-verdicts")


@pytest.fixture
def world():
    """A communicator of all ranks that no other test uses."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Free()


class Verdicts:
    """The hooks of one rank."""

    def __init__(self, config: pytest.Config, comm) -> None:
        self.comm = comm.Dup()
        self.stderr = _uncaptured_stderr(config)
        if comm.rank > 0:
            config.pluginmanager.get_plugin("terminalreporter")._tw._file = open(os.devnull, "w")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests marked `mpi`: the others would run once a rank, all at the same time."""
        serial = [item for item in items if item.get_closest_marker("mpi") is None]
        items[:] = [item for item in items if item.get_closest_marker("mpi") is not None]
        config.hook.pytest_deselected(items=serial)
        collected = self.comm.allgather([item.nodeid for item in items])
        if any(ids != collected[0] for ids in collected):
            raise pytest.UsageError("the ranks must collect the same tests in the same order")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker and marker.args else LIMIT_S
        watchdog = threading.Timer(limit_s, self._give_up, (item.nodeid, limit_s))
        watchdog.daemon = True
        watchdog.start()
        try:
            return (yield)
        finally:
            watchdog.cancel()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call):
        report = yield
        outcomes = self._exchange(report)
        failed = [rank for rank, (outcome, _) in enumerate(outcomes) if outcome == "failed"]
        if failed:
            text = outcomes[failed[0]][1]
            report.longrepr = f"failed on rank {_listed(failed)} of {self.comm.size}; rank {failed[0]}:\n{text}"
        elif len({outcome for outcome, _ in outcomes}) > 1:
            report.longrepr = "the ranks differ: " + ", ".join(outcome for outcome, _ in outcomes)
        else:
            return report
        report.outcome = "failed"
        item.session.shouldfail = "a test failed, and later ones may meet its messages"
        return report

    def _exchange(self, report: pytest.TestReport) -> list[tuple[str, str]]:
        """Return every rank's (outcome, traceback), or abort the job when a rank stays away."""
        mine = (report.outcome, report.longreprtext if report.failed else "")
        others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        sent = [self.comm.isend(mine, rank, _TAG) for rank in others]
        outcomes = {self.comm.rank: mine}
        failed_s = time.monotonic() if report.failed else None
        while len(outcomes) < self.comm.size:
            for rank in others:
                if rank not in outcomes and self.comm.iprobe(rank, _TAG):
                    outcomes[rank] = self.comm.recv(source=rank, tag=_TAG)
                    if outcomes[rank][0] == "failed" and failed_s is None:
                        failed_s = time.monotonic()
            if failed_s is not None and time.monotonic() > failed_s + GRACE_S:
                self._abort(report, outcomes)
            time.sleep(0.0005)
        for request in sent:
            request.wait()
        return [outcomes[rank] for rank in range(self.comm.size)]

    def _abort(self, report: pytest.TestReport, outcomes: dict[int, tuple[str, str]]) -> None:
        """Print the traceback of the lowest failed rank, on that rank, and end the job."""
        failed = sorted(rank for rank, (outcome, _) in outcomes.items() if outcome == "failed")
        missing = [rank for rank in range(self.comm.size) if rank not in outcomes]
        if self.comm.rank != failed[0]:
            time.sleep(GRACE_S)  # it is that rank's to print, if it still can
        self._write(
            f"\n{report.nodeid}: failed on rank {_listed(failed)}, while rank {_listed(missing)} "
            f"had not ended it; the job is aborted. Rank {failed[0]}:\n{outcomes[failed[0]][1]}\n"
        )
        self.comm.Abort(1)

    def _give_up(self, nodeid: str, limit_s: float) -> None:
        """Print where every thread of this rank stands, leave the other ranks time to do so, and exit."""
        self._write(f"\n{nodeid}: rank {self.comm.rank} still runs after {limit_s:.0f} s\n")
        faulthandler.dump_traceback(self.stderr, all_threads=True)
        time.sleep(2)
        os._exit(1)

    def _write(self, text: str) -> None:
        os.write(self.stderr, text.encode())


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _uncaptured_stderr(config: pytest.Config) -> int:
    """Return a descriptor of the real stderr: pytest points the usual one at a file while tests run."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    capture.suspend_global_capture(in_=False)
    try:
        sys.stderr.flush()
        return os.dup(2)
    finally:
        capture.resume_global_capture()
