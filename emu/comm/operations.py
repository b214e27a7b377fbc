"""The local sums, by name."""

from collections.abc import Callable
from typing import Any

import numpy as np

OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
