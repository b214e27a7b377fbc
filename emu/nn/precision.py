"""Precisions by the names that people use, and the dynamic loss scale that float16 needs."""

from __future__ import annotations

from dataclasses import dataclass

from emu.catalog.schema import unknown
from emu.errors import ConfigError


@dataclass(frozen=True)
class Precision:
    """How a model computes: the dtype of its arrays, and of its products where that is another.

    With `masters` the optimizer keeps float32 weights of which the model's are rounded copies; with `scaled` the
    loss is scaled, since small gradients would vanish.
    """

    name: str
    dtype: str
    math: str | None = None
    masters: bool = False
    scaled: bool = False


PRECISIONS = {
    each.name: each
    for each in (
        Precision("fp64", "float64"),
        Precision("fp32", "float32"),
        Precision("tf32", "float32", math="tf32"),
        Precision("fp16", "float16", masters=True, scaled=True),
        Precision("bf16", "bfloat16", masters=True),
    )
}


def precision(name: str, where: str = "dtype") -> Precision:
    """Return a precision by its name (fp64, fp32, tf32, fp16, bf16) or its dtype's. Raise ConfigError otherwise.

    >>> precision("tf32").dtype, precision("bfloat16").name
    ('float32', 'bf16')
    """
    by_dtype = {each.dtype: each for each in PRECISIONS.values() if each.math is None}
    found = PRECISIONS.get(name) or by_dtype.get(name)
    if found is None:
        raise ConfigError(f"{where}: {unknown('precision', name, [*PRECISIONS, *by_dtype])}")
    return found


@dataclass
class LossScale:
    """A loss scale that halves when a gradient overflows, and doubles after `interval` steps in which none did.

    The same value stands on every rank, as long as all are told the same.
    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018; defaults of PyTorch's GradScaler.
    """

    value: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good_steps: int = 0
    skipped: int = 0

    def update(self, finite: bool) -> bool:
        """Take note of a step whose gradients were all finite, or not; return whether to apply them."""
        if not finite:
            self.value *= self.backoff
            self.good_steps = 0
            self.skipped += 1
            return False
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.value *= self.growth
            self.good_steps = 0
        return True
