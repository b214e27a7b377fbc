"""The errors a user can meet. Each message reads `where: what must hold, got value; how to fix it`.

    EmuError
    ├── ConfigError          what the user wrote: options, TOML, units, names
    ├── TraceError           a trace file that cannot be read, or a trace that cannot be timed so
    │   └── DeadlockError    a trace or program that cannot finish: who waits for whom
    ├── MismatchError        ranks that disagree about a collective or a message
    ├── DeviceOutOfMemory    an emulated GPU's memory is full
    ├── RankError            a rank raised or died
    └── DeadlineExceeded     a wait that took longer than its deadline
"""


class EmuError(Exception):
    """Something the user can mend; shown as one line, without a traceback."""


class ConfigError(EmuError):
    """What the user wrote does not hold: an option, a unit, a name, a key of a TOML file."""


class TraceError(EmuError):
    """A trace that cannot be read, or that cannot be timed as asked."""


class DeadlockError(TraceError):
    """A program or trace that cannot finish; the message names the cycle."""


class MismatchError(EmuError):
    """Ranks disagree in operation, count, dtype, root, algorithm or order."""


class DeviceOutOfMemory(EmuError):
    """An allocation exceeds the emulated GPU's memory; the message holds the breakdown."""


class RankError(EmuError):
    """A rank raised or died; the message names it."""


class DeadlineExceeded(EmuError):
    """A wait outlasted its deadline; the message names what was waited for."""
