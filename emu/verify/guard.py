"""Running a submission in a process of its own, which is stopped when it loops for ever or prints without end."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

OUTPUT_BYTES = 16 << 20  # what a submission may print
KEPT_BYTES = 2000


@dataclass(frozen=True)
class Outcome:
    """What came of a submission: its results, or why it was stopped. `printed` begins with what it printed."""

    results: dict[str, Any]
    stopped: str
    printed: str


def run_guarded(request: dict[str, Any], limit_s: float) -> Outcome:
    """Check a submission as `request` says (see `child`), in at most `limit_s` seconds."""
    results_read, results_write = os.pipe()
    with tempfile.TemporaryFile() as tracebacks:
        command = [sys.executable, "-m", "emu.verify.child", json.dumps(request), str(results_write)]
        process = subprocess.Popen(
            [*command, str(tracebacks.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(results_write, tracebacks.fileno()),
            start_new_session=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        )
        os.close(results_write)
        try:
            told, printed, reason = _read(process, results_read, limit_s)
        finally:
            _kill(process)
            os.close(results_read)
        tracebacks.seek(0)
        where = _where(tracebacks.read().decode(errors="replace"), request["submission"])
    lines = [json.loads(line) for line in told.decode().splitlines() if line.endswith("}")]
    final = lines[-1] if lines and "begin" not in lines[-1] else {}
    if not final and not reason:
        reason = "did not end" if where else f"ended with status {process.returncode}"
    case = next((line["begin"] for line in reversed(lines) if "begin" in line), "the start")
    stopped = "" if final else f"{case}: {_sentence(reason, where, request)}"
    return Outcome(final, stopped, printed[:KEPT_BYTES].decode(errors="replace"))


def _read(process: subprocess.Popen, results: int, limit_s: float) -> tuple[bytes, bytes, str]:
    """Read both until the child ends; return results, the beginning of its output, and why it is to be stopped."""
    assert process.stdout is not None
    told, printed, count = b"", b"", 0
    deadline_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(results, selectors.EVENT_READ)
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return told, printed, "did not end"
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fd == results:
                    told += data
                else:
                    count += len(data)
                    printed += data[: KEPT_BYTES - len(printed)]
                    if count > OUTPUT_BYTES:
                        return told, printed, "printed too much"
    process.wait()
    return told, printed, ""


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _where(traceback: str, submission: str) -> str:
    """Return file:line of the submission's innermost frame in a dumped traceback."""
    path = submission.rpartition(":")[0]
    for found in re.finditer(r'File "([^"]+)", line (\d+)', traceback):
        if os.path.basename(found[1]) == os.path.basename(path):
            return f"{os.path.basename(path)}:{found[2]}"
    return "an unknown place" if traceback else ""


def _sentence(reason: str, where: str, request: dict[str, Any]) -> str:
    at = f", at {where}" if where else ""
    if reason == "did not end":
        return f"stopped: it did not end within {request['case_limit_s']:g} s{at}; is there a loop without an end?"
    if reason == "printed too much":
        return f"stopped: it printed more than {OUTPUT_BYTES >> 20} MiB{at}; print less"
    return f"the process {reason}{at}; did it exit, or run out of memory?"
