"""What a communication hook keeps from step to step, in a checkpoint.

Every rank's residuals are its own, so every rank writes. The same number of replicas goes on with the same bits.
Another number shares out what is yet to be sent: replica r takes the residuals of the old replicas r, r + p, r + 2p, …,
and the first one what owners of 1-bit parts had yet to give on; their sum stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.parallel.training import Trainer


def arrays(trainer: Trainer) -> dict[str, np.ndarray]:
    """Return what this rank's hook keeps, on the host, by `hook/KIND/NAME`; 16 bits widened, which files know."""
    found = {}
    for (kind, of), array in _kept(trainer).items():
        values = trainer.gpu.to_host(array, "checkpoint")
        found[f"hook/{kind}/{getattr(of, 'name', of)}"] = values if values.itemsize > 2 else values.astype(np.float32)
    return found


def described(trainer: Trainer, hooked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader must know of them; empty where there is nothing."""
    if not hooked:
        return {}
    grid = trainer.grid
    return {
        "keys": list(hooked), "replica": grid.data.rank, "replicas": grid.data.size, "place": [grid.stage, grid.part],
        "buckets": _layout(trainer),
    }  # fmt: skip


def check(trainer: Trainer, manifest: Mapping[str, Any], where: Path) -> None:
    """Raise ConfigError where what a hook has yet to send would be lost."""
    plan, then = trainer.plan, manifest["hook"]
    if not manifest["hooks"]:
        return
    if then != plan.hook:
        raise ConfigError(f"{where}: hook {then!r} was trained, got {plan.hook!r}; resume with the same")
    for axis in ("tp", "pp"):
        if manifest[axis] != getattr(plan, axis):
            raise ConfigError(
                f"{where}: hook {then!r} keeps what is to be sent by {axis} = {manifest[axis]}, got "
                f"{getattr(plan, axis)}; resume with --{axis} {manifest[axis]}"
            )


def restore(trainer: Trainer, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Give this rank's hook what it is to go on with."""
    if not manifest["hooks"]:
        return
    place = [trainer.grid.stage, trainer.grid.part]
    mine: dict[tuple[str, Any], np.ndarray] = {}
    for rank, told in manifest["hooks"].items():
        if told["place"] != place:
            continue
        with np.load(folder / f"rank-{int(rank):04d}.npz", allow_pickle=False) as file:
            for key, values in _share(trainer, told, file):
                mine[key] = mine[key] + values if key in mine and key[0] == "residual" else values
    for key, values in mine.items():
        dtype = str(values.dtype) if key[0] == "server" else key[1].dtype
        _kept(trainer)[key] = trainer.gpu.array(values, dtype, purpose="buffers", name="load")


def _share(
    trainer: Trainer, told: Mapping[str, Any], file: Mapping[str, np.ndarray]
) -> Iterator[tuple[tuple[str, Any], np.ndarray]]:
    """Yield what this rank takes of one old rank's arrays, by the hook's keys."""
    data = trainer.grid.data
    by_name = {parameter.name: parameter for parameter in trainer.model.trainable()}
    same = told["replicas"] == data.size and told["buckets"] == _layout(trainer)
    for key in told["keys"]:
        _, kind, name = key.split("/", 2)
        if kind == "server" and same:
            if told["replica"] == data.rank:
                yield (kind, int(name)), file[key]
        elif kind == "server":
            if data.rank == 0:
                yield from _owed(told, int(name), file[key], by_name)
        elif kind == "factor" or told["replica"] % data.size == data.rank:
            yield (kind, by_name[name]), file[key]


def _owed(
    told: Mapping[str, Any], index: int, values: np.ndarray, by_name: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, Any], np.ndarray]]:
    """Yield what an owner of a part of a bucket had yet to give on, as residuals of the bucket's parameters."""
    begin, at = told["replica"] * values.size, 0
    end = begin + values.size
    for name, size in told["buckets"][index]:
        first, last = max(at, begin), min(at + size, end)
        if first < last:
            owed = np.zeros(size, values.dtype)
            owed[first - at : last - at] = values[first - begin : last - begin]
            yield ("residual", by_name[name]), owed
        at += size


def _layout(trainer: Trainer) -> list[list[list[Any]]]:
    return [[[p.name, p.size] for p in bucket.parameters] for bucket in trainer.strategy.buckets.all]


def _kept(trainer: Trainer) -> dict[tuple[str, Any], Any]:
    hook = getattr(trainer.strategy, "hook", None)
    return hook.kept if hook is not None else {}
