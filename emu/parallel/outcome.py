"""What one rank knows after training. Sums and comparisons between ranks here are control, not emulated traffic."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.model import Hooks
from emu.parallel.wrap import bare

if TYPE_CHECKING:
    from emu.parallel.training import Trainer


@dataclass
class Outcome:
    """What one rank knows after training."""

    losses: list[float]  # of each step, over the global batch
    accuracy: float | None  # on data kept apart, told by rank 0; None dry, and where no rank has the whole model
    buckets: list[dict[str, Any]]
    parameters: int
    fingerprint: str  # of all parameters' bytes; equal on all ranks that hold the same part
    replicas_equal: bool
    memory: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: int = 0  # steps whose gradients were not finite
    norm: float | None = None  # of the last step's gradients, where it was asked for


def tell(trainer: Trainer) -> Outcome:
    """Bring together what came out. Collective."""
    gpu, grid = trainer.gpu, trainer.grid
    memory = _memory(gpu)
    with whole(trainer):
        fingerprint = "" if gpu.dry else _fingerprint(trainer)
        accuracy = _accuracy(trainer) if not gpu.dry and gpu.rank == 0 and len(grid.across) == 0 else None
    mine = [trainer.value(parts) if parts and not gpu.dry and grid.part == 0 else 0.0 for parts in trainer.parts]
    told = gpu.comm.wire.exchange((mine, (grid.stage, grid.part, fingerprint)))
    losses = [] if gpu.dry else [float(sum(step)) for step in zip(*(losses for losses, _ in told), strict=True)]
    replicas = {each[:2] for _, each in told}
    equal = len({each for _, each in told}) == len(replicas)
    return _outcome(trainer, memory, losses, accuracy, fingerprint, equal)


def tell_alone(trainer: Trainer) -> Outcome:
    """Tell what one rank of a dry run knows, without asking the others."""
    return _outcome(trainer, _memory(trainer.gpu), [], None, "", True)


def _memory(gpu: Any) -> dict[str, Any]:
    memory = gpu.memory
    return {
        "peak_bytes": memory.peak_bytes,
        "at_peak": dict(memory.at_peak),
        "peak": dict(memory.peak),
        "live": {purpose: n for purpose, n in memory.live.items() if n},
        "capacity_bytes": memory.capacity_bytes,
    }


def _outcome(
    trainer: Trainer, memory: dict[str, Any], losses: list[float], accuracy: float | None, fingerprint: str,
    equal: bool,
) -> Outcome:  # fmt: skip
    strategy = trainer.strategy
    update = getattr(strategy, "update", None)
    return Outcome(
        losses=losses,
        accuracy=accuracy,
        buckets=[
            {"index": b.index, "bytes": b.nbytes, "parameters": [p.name for p in b.parameters]}
            for b in [*strategy.buckets.all, *_chunks(strategy)]
        ],
        parameters=trainer.parameters,
        fingerprint=fingerprint,
        replicas_equal=equal,
        memory=memory,
        notes=list(strategy.notes),
        skipped=update.skipped if update else 0,
        norm=update.last_norm if update else None,
    )


@contextmanager
def whole(trainer: Trainer) -> Iterator[None]:
    """Make all parameters whole inside, in memory that is not the emulated GPU's. Collective."""
    strategy, gpu = trainer.strategy, trainer.gpu
    sharded = getattr(strategy, "sharded", None)
    if sharded is None or gpu.dry:
        yield
        return
    layers = trainer.model.layers
    for chunk in sharded.chunks:
        parts = strategy.comm.wire.exchange(_host(gpu, chunk.shard).tobytes())
        flat = np.concatenate([np.frombuffer(part, chunk.shard.dtype) for part in parts])
        chunk.bind_weights(gpu.xp.asarray(flat))
    trainer.model.layers = [bare(layer) for layer in layers]
    try:
        yield
    finally:
        trainer.model.layers = layers
        for chunk in sharded.chunks:
            chunk.bind_weights(None)


def _chunks(strategy: Any) -> list[Any]:
    return strategy.chunks.all if hasattr(strategy, "chunks") else []


def _host(gpu: Any, array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else gpu.xp.asnumpy(array)


def _fingerprint(trainer: Trainer) -> str:
    digest = hashlib.sha256()
    for parameter in sorted(trainer.model.parameters(), key=lambda p: p.name):
        digest.update(np.ascontiguousarray(_host(trainer.gpu, parameter.data)).view(np.uint8).data)
    return digest.hexdigest()


def _accuracy(trainer: Trainer, rows: int = 512) -> float | None:
    """Return the part of the data kept apart that the model gets right (of its first `rows`).

    It judges the training and is no part of it, so it is not recorded.
    """
    gpu, model, dataset = trainer.gpu, trainer.model, trainer.dataset
    if dataset is None:
        return None
    inputs, targets = dataset.test_inputs[:rows], dataset.test_targets[:rows]
    right, hooks = 0.0, model.hooks
    model.hooks = Hooks()
    with gpu.unrecorded():
        for start in range(0, len(inputs), 128):
            x, y = gpu.array(inputs[start : start + 128]), gpu.array(targets[start : start + 128])
            logits, _ = model.forward(gpu, x, keep=False)
            stats, _ = SoftmaxCrossEntropy().forward(gpu, logits, y)
            right += float(gpu.to_host(stats)[1])
    model.hooks = hooks
    return right / targets.size
