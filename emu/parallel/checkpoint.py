"""Checkpoints: every rank writes its shards; a checkpoint is there whole or not at all.

    DIR/step-00000020/manifest.json    what the run was, and which parameters lie where
    DIR/step-00000020/rank-0003.npz    rank 3's part of master weights and optimizer state

Files are written beside, synced, and the directory is renamed once all ranks are done: whoever is killed at any moment
leaves the last good checkpoint as it was. Reading puts parameters together by name, so that another number of ranks,
another strategy, another number of pipeline stages or of tensor-parallel parts goes on from it. What a hook keeps goes
with it: see `emu.parallel.hook_checkpoint`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.errors import ConfigError
from emu.parallel import hook_checkpoint
from emu.parallel.buckets import Bucket
from emu.parallel.data_parallel import DataParallel
from emu.parallel.rebuild import take_over
from emu.parallel.tasks import Build
from emu.parallel.tensor import as_split

if TYPE_CHECKING:
    from emu.parallel.training import Trainer

VERSION = 1
KEEP = 2  # checkpoints that stay


@dataclass(frozen=True)
class _Held:
    """One bucket's arrays of one rank: its part of `parts`."""

    bucket: Bucket
    part: int
    parts: int
    arrays: list[Any]


def save(trainer: Trainer, steps: int) -> Path:
    """Write the state after so many steps; return the directory. Collective."""
    folder, comm = Path(str(trainer.plan.checkpoint)), trainer.gpu.comm
    if isinstance(trainer.strategy, DataParallel):
        trainer.strategy.settle()  # whoever goes on has these buckets from the first step on
    final, beside = folder / f"step-{steps:08d}", folder / f".step-{steps:08d}.writing"
    if comm.rank == 0:
        shutil.rmtree(beside, ignore_errors=True)
        _make(beside)
    comm.wire.exchange(None)
    held = _held(trainer) if _writes(trainer) else []
    data = {
        f"{i}.{k}": trainer.gpu.to_host(array, "checkpoint")
        for i, each in enumerate(held) for k, array in enumerate(each.arrays)
    }  # fmt: skip
    hooked = hook_checkpoint.arrays(trainer)
    data |= hooked
    if data:
        _write(beside / f"rank-{comm.rank:04d}.npz", lambda file: np.savez(file, **data))  # type: ignore[arg-type]
    told = comm.wire.exchange(
        ([_described(each, trainer.grid.part) for each in held], hook_checkpoint.described(trainer, hooked))
    )
    if comm.rank == 0:
        manifest = _manifest(trainer, steps)
        manifest["ranks"] = {str(r): each for r, (each, _) in enumerate(told) if each}
        manifest["hooks"] = {str(r): each for r, (_, each) in enumerate(told) if each}
        _write(beside / "manifest.json", lambda file: file.write(json.dumps(manifest).encode()))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(beside, final)
        _sync_folder(folder)
        for old in _all(folder)[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)
    comm.wire.exchange(None)
    return final


def load(trainer: Trainer) -> int:
    """Read the last checkpoint into the strategy; return the steps that were done. Collective."""
    folder = Path(str(trainer.plan.checkpoint))
    there = _all(folder)
    if not there:
        raise ConfigError(f"resume: a checkpoint in {folder} is expected, got none; leave --resume out to begin anew")
    manifest = json.loads((there[-1] / "manifest.json").read_text())
    _check(trainer, manifest, there[-1])
    _take_layout(trainer, manifest)
    reader = _Parts(trainer, there[-1], manifest)
    for each in _held(trainer):
        for k, array in enumerate(each.arrays):
            whole = np.concatenate([reader.read(p, k) for p in each.bucket.parameters] or [np.empty(0)])
            padded = np.zeros(each.bucket.padded, whole.dtype)
            padded[: whole.size] = whole
            size = each.bucket.padded // each.parts
            array[...] = trainer.gpu.xp.asarray(padded[each.part * size : (each.part + 1) * size])
    update = trainer.strategy.update  # type: ignore[attr-defined]
    if update is not None:
        update.refresh()
        update.optimizer.steps = manifest["optimizer_steps"]
        if update.loss_scale is not None and manifest["loss_scale"] is not None:
            update.loss_scale.scale, update.loss_scale.good = manifest["loss_scale"]
    _make_whole(trainer)
    hook_checkpoint.restore(trainer, there[-1], manifest)
    trainer.gpu.comm.wire.exchange(None)
    return int(manifest["steps"])


def _make_whole(trainer: Trainer) -> None:
    """Give every rank the parameters of ZeRO buckets that stay whole."""
    strategy: Any = trainer.strategy
    if not hasattr(strategy, "sharded"):
        return
    with trainer.gpu.span("load parameters"):
        for bucket in strategy.buckets.all:
            strategy.all_gather(strategy.comm, bucket.shard, bucket.weights)


def _take_layout(trainer: Trainer, manifest: Mapping[str, Any]) -> None:
    """Take over buckets that were rebuilt, so that the same number of ranks adds in the same order."""
    strategy: Any = trainer.strategy
    groups = manifest["buckets"].get(f"{trainer.grid.stage}")
    if groups is None or {trainer.plan.strategy, manifest["strategy"]} != {"ddp"} or manifest["tp"] != trainer.plan.tp:
        return
    by_name = {parameter.name: parameter for parameter in trainer.model.trainable()}
    if {name for group in groups for name in group} != set(by_name):
        return
    new = [
        Bucket(i, [by_name[name] for name in group], by_name[group[0]].dtype) for i, group in enumerate(groups)
    ]
    take_over(trainer.gpu, strategy.buckets.all, new, strategy.update)
    strategy.take_buckets(new)


def _held(trainer: Trainer) -> list[_Held]:
    strategy: Any = trainer.strategy
    if strategy.update is None:  # a worker of a parameter server
        return [_Held(b, 0, 1, [b.weights]) for b in strategy.buckets.all]
    arrays = strategy.update.arrays()
    if hasattr(strategy, "sharded"):
        buckets = strategy.buckets.all + strategy.chunks.all
        comm = strategy.comm
        return [_Held(b, comm.rank, comm.size, a) for b, a in zip(buckets, arrays, strict=True)]
    return [_Held(b, 0, 1, a) for b, a in zip(strategy.buckets.all, arrays, strict=True)]


def _writes(trainer: Trainer) -> bool:
    """Say whether this rank writes: replicas that hold the same do so once, a parameter server for its workers."""
    strategy: Any = trainer.strategy
    return hasattr(strategy, "sharded") or (strategy.worker <= 0 and strategy.update is not None)


def _described(held: _Held, tensor_part: int) -> dict[str, Any]:
    return {
        "names": [parameter.name for parameter in held.bucket.parameters],
        "sizes": [parameter.size for parameter in held.bucket.parameters],
        "cut": bool(held.bucket.parameters and held.bucket.parameters[0].cut is not None),
        "tensor_part": tensor_part, "padded": held.bucket.padded, "part": held.part, "parts": held.parts,
        "slots": len(held.arrays),
    }  # fmt: skip


def _manifest(trainer: Trainer, steps: int) -> dict[str, Any]:
    plan, update = trainer.plan, trainer.strategy.update  # type: ignore[attr-defined]
    scale = update.loss_scale
    return {
        "version": VERSION, "steps": steps, "optimizer_steps": update.optimizer.steps, "model": plan.model,
        "seed": plan.seed, "batch": plan.batch, "dtype": plan.dtype, "tp": plan.tp, "pp": plan.pp,
        "strategy": plan.strategy, "hook": plan.hook,
        "loss_scale": [scale.scale, scale.good] if scale is not None else None,
        "buckets": {str(trainer.grid.stage): [[p.name for p in b.parameters] for b in trainer.strategy.buckets.all]},
    }  # fmt: skip


def _check(trainer: Trainer, manifest: Mapping[str, Any], where: Path) -> None:
    if manifest.get("version") != VERSION:
        raise ConfigError(f"{where}: version {VERSION} is expected, got {manifest.get('version')}")
    for key in ("model", "seed", "batch", "dtype"):
        mine = getattr(trainer.plan, key)
        if manifest[key] != mine:
            raise ConfigError(f"{where}: {key} {manifest[key]!r} was trained, got {mine!r}; resume with the same")
    hook_checkpoint.check(trainer, manifest, where)


class _Parts:
    """Reads parameters that may have been cut into other parts than this rank's."""

    def __init__(self, trainer: Trainer, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.same = manifest["tp"] == trainer.plan.tp
        parts = [trainer.grid.part] if self.same else range(manifest["tp"])
        self.readers = [_Reader(folder, manifest, part) for part in parts]
        self.cut_then: list[dict[str, Any]] = []  # of each part: its parameters by name
        if not self.same:
            task, plan = trainer.task, trainer.plan
            for part in parts:
                split = as_split(part, manifest["tp"])
                model = task.make(trainer.dataset, Build(plan.storage, plan.math, split=split))
                self.cut_then.append({parameter.name: parameter for parameter in model.parameters()})

    def read(self, parameter: Any, slot: int) -> np.ndarray:
        """Return one array of a parameter, flat: slot 0 is its (master) weights, then the optimizer's."""
        if self.same:
            return self.readers[0].read(parameter, slot)
        shape = parameter.whole_shape or parameter.shape
        places = np.arange(math.prod(shape)).reshape(shape)
        whole: Any = None
        for reader, parameters in zip(self.readers, self.cut_then, strict=True):
            then = parameters.get(parameter.name)
            if then is None:  # the first part alone has some of those that are not cut
                continue
            values = reader.read(then, slot)
            if whole is None:
                whole = np.empty(places.size, values.dtype)
            whole[(places if then.cut is None else then.cut(places)).reshape(-1)] = values
        return whole[places if parameter.cut is None else parameter.cut(places)].reshape(-1)


class _Reader:
    """Finds a parameter's arrays among all ranks' files. One file is open at a time for each rank's part."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], tensor_part: int) -> None:
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.places: dict[str, list[tuple[str, int, Mapping[str, Any], int]]] = {}
        for rank, buckets in manifest["ranks"].items():
            for i, each in enumerate(buckets):
                if each["tensor_part"] != (tensor_part if each["cut"] else 0):
                    continue
                at = 0
                for name, size in zip(each["names"], each["sizes"], strict=True):
                    self.places.setdefault(name, []).append((rank, i, each, at))
                    at += size

    def read(self, parameter: Any, slot: int) -> np.ndarray:
        """Return one array of a parameter, flat: slot 0 is its (master) weights, then the optimizer's."""
        if parameter.name not in self.places:
            raise ConfigError(f"{self.folder}: parameter {parameter.name} is expected, got none; resume the same model")
        whole: Any = np.empty(0, np.float32)
        for rank, i, each, at in self.places[parameter.name]:
            if slot >= each["slots"]:
                raise ConfigError(f"{self.folder}: the same optimizer is expected, got other state; resume with it")
            size = each["padded"] // each["parts"]
            begin, end = each["part"] * size, (each["part"] + 1) * size
            first, last = max(at, begin), min(at + parameter.size, end)
            if first < last:
                piece = self._file(rank)[f"{i}.{slot}"][first - begin : last - begin]
                if not whole.size:
                    whole = np.empty(parameter.size, piece.dtype)
                whole[first - at : last - at] = piece  # again where two stages share it
        return np.asarray(whole)

    def _file(self, rank: str) -> Mapping[str, np.ndarray]:
        if rank not in self.files:
            with np.load(self.folder / f"rank-{int(rank):04d}.npz", allow_pickle=False) as file:
                self.files[rank] = dict(file)
        return self.files[rank]


def _all(folder: Path) -> list[Path]:
    """Return the whole checkpoints, the oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / "manifest.json").is_file())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"checkpoint: a directory that can be written is expected, got {folder}: {error}") from None


def _write(path: Path, write: Any) -> None:
    with open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
