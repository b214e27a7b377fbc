"""The process in which a submission runs: `python -m emu.verify.child REQUEST RESULTS TRACEBACK`.

REQUEST is JSON, the other two are descriptors.

Results are JSON lines: {"begin": case} before each case, and in the end {"rows", "faults", ...} or {"error"}.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
from dataclasses import asdict
from typing import Any

from emu.errors import EmuError

MEMORY_BYTES = 4 << 30
FILE_BYTES = 16 << 20


def work(request: dict[str, Any], results: int, tracebacks: int) -> None:
    """Check what the request asks for; tell it on the descriptor `results`."""
    from emu.verify.check import check
    from emu.verify.submission import load

    def tell(line: dict[str, Any]) -> None:
        os.write(results, (json.dumps(line) + "\n").encode())

    def begin(what: Any) -> None:
        tell({"begin": str(what)})
        faulthandler.dump_traceback_later(request["case_limit_s"], exit=True, file=tracebacks)

    try:
        begin("the import of the file")
        submission = load(request["collective"], request["submission"])
        rows, faults = check(submission, request["ranks"], request["lengths"], begin)
        done: dict[str, Any] = {"rows": [asdict(row) for row in rows], "faults": [fault.as_dict() for fault in faults]}
        if request["show"]:
            from emu.verify.picture import holdings

            begin("the picture")
            done["picture"] = holdings(submission, request["show"]).as_dict()
        if not faults and request["trace"]:
            from emu.cluster import load_cluster
            from emu.verify.timing import record

            p = max(request["ranks"])
            cluster = load_cluster(request["cluster"], request["settings"], p)
            begin("the timed run")
            record(submission, cluster, p, request["nbytes"]).save(request["trace"])
        tell(done)
    except EmuError as error:
        tell({"error": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit() -> None:
    for what, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES)):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    _limit()
    work(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
