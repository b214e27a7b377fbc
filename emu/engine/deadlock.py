"""Why a trace can't go on: the cycle of ranks that wait for each other."""

from emu.engine.program import Program
from emu.engine.state import State
from emu.errors import DeadlockError


def explain(state: State, program: Program, labels: tuple[str, ...]) -> DeadlockError:
    return DeadlockError("todo")
