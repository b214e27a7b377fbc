"""What does `import emu` cost a rank beyond numpy and mpi4py?

Each run is a process of its own, as a rank is. The two kinds of run alternate; MPI is loaded and not
initialised, which costs both the same. `extra_ms` is the difference of the medians.
"""

import statistics
import subprocess
import sys

from bench.runner import Option, Result, run

_TIMED = """
import time
started = time.perf_counter()
import numpy, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
{more}
print(time.perf_counter() - started)
"""
LIMIT_MS = 150.0


def measure_imports(runs: int) -> Result:
    """Import in `runs` processes of each kind, after one of each that fills the caches."""
    programs = {"baseline": _TIMED.format(more=""), "with_emu": _TIMED.format(more="import emu")}
    samples_ms: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(-1, runs):
        for name, program in programs.items():
            ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            if repeat >= 0:
                samples_ms[name].append(float(ended.stdout) * 1e3)
    baseline_ms, with_emu_ms = (statistics.median(samples_ms[name]) for name in programs)
    extra_ms = with_emu_ms - baseline_ms
    return {
        "extra_ms": extra_ms,
        "baseline_ms": baseline_ms,
        "with_emu_ms": with_emu_ms,
        "runs": runs,
        "checks": {f"import emu costs at most {LIMIT_MS:.0f} ms": extra_ms <= LIMIT_MS},
    }


if __name__ == "__main__":
    run(__doc__.partition("\n")[0], measure_imports, runs=Option(21, "processes of each kind"))
