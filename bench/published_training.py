"""Published training runs that emu is held against, timed through the product's own dry path.

Megatron-LM's weak scaling (F2) and a sweep over DDP's bucket (F8). Computation is the catalogue's: the share of the
peak that large matrix products reach, not one fitted to these runs.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.published import rows_of
from emu.cluster import load_cluster
from emu.parallel.training import Plan, train
from emu.program import replay, run_here

# Milliseconds an iteration; tensor parallel within the node, the rest data parallel. Sequence 1024, vocabulary 51200.
# Source: Megatron-LM, tables of 2020.
F2 = """system,width,heads,layers,parts,gpus,batch,time
dgx-2,1920,15,24,1,1,8,1121
dgx-2,2304,18,30,2,2,8,1093
dgx-2,3072,24,36,4,4,8,1238
dgx-2,4096,32,42,8,8,8,1407
dgx-a100,1920,15,24,1,1,16,1076
dgx-a100,2304,18,30,2,2,16,1026
dgx-a100,3072,24,36,4,4,16,1162
dgx-a100,4096,32,42,8,8,16,1343
dgx-a100:16,1920,15,24,1,128,2048,1153
dgx-a100:32,2304,18,30,2,256,2048,1101
dgx-a100:64,3072,24,36,4,512,2048,1242
dgx-a100:128,4096,32,42,8,1024,2048,1380
"""

# Seconds an iteration of GPT-2 XL on 2 GPUs of a kind that is not told, batch 2 each, by length and bucket in MB.
# Source: damek, a write-up of Stanford's CS336.
F8 = """length,1,10,100,1000
128,0.7293,0.7290,0.7092,0.7124
512,0.7870,0.7857,0.7713,0.7819
"""


def megatron() -> Iterator[tuple[str, float, float]]:
    """Yield (row, measured, emulated): the iteration, and FLOP/s a GPU against those of the system's one GPU."""
    alone: dict[str, tuple[float, float]] = {}
    for each in rows_of(F2):
        system, gpus, parts = each["system"].partition(":")[0], int(each["gpus"]), int(each["parts"])
        measured_s, emulated_s = float(each["time"]) / 1e3, _iteration_s(each)
        name = f"{system}, {gpus} GPUs, {parts} a layer"
        yield f"{name}, ms", measured_s * 1e3, emulated_s * 1e3
        each_does = flops(each) / gpus
        first = alone.setdefault(system, (each_does / measured_s, each_does / emulated_s))
        if gpus > 1:
            yield f"{name}, % of one GPU's FLOP/s", *(
                100 * each_does / s / one for s, one in zip((measured_s, emulated_s), first, strict=True))


def flops(row: dict[str, str]) -> float:
    """Return the FLOPs of an iteration as the paper counts them, recomputation included."""
    width, layers = int(row["width"]), int(row["layers"])
    return 96 * int(row["batch"]) * 1024 * layers * width**2 * (1 + 1024 / (6 * width) + 51200 / (16 * layers * width))


def _iteration_s(row: dict[str, str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpt.toml"
        shape = "".join(f"{key} = {row[key]}\n" for key in ("layers", "width", "heads"))
        file.write_text(f'[model]\nfamily = "gpt"\n{shape}length = 1024\nvocabulary = 51200\n')
        plan = Plan(model=str(file), batch=int(row["batch"]), steps=1, dtype="float16", tp=int(row["parts"]),
                    recompute=True, algorithm="auto")  # fmt: skip
        return _step_s(row["system"], int(row["gpus"]), plan)


def buckets() -> Iterator[tuple[str, float, float]]:
    """Yield (row, measured, emulated): each iteration against the shortest of its length."""
    for each in rows_of(F8):
        length = int(each.pop("length"))
        measured = {int(mb): float(time) for mb, time in each.items()}
        emulated = {mb: _bucket_s(mb, length) for mb in measured}
        for mb in measured:
            name = f"GPT-2 XL, length {length}, {mb} MB, iteration over the shortest"
            yield name, measured[mb] / min(measured.values()), emulated[mb] / min(emulated.values())


def _bucket_s(mb: int, length: int) -> float:
    size = mb * 10**6
    plan = Plan(model="gpt2-xl", batch=4, steps=1, dtype="float32", length=length, bucket_bytes=size,
                first_bucket_bytes=min(size, 1 << 20), algorithm="auto")  # fmt: skip
    return _step_s("dgx-h100", 2, plan)


def _step_s(name: str, ranks: int, plan: Plan) -> float:
    cluster: Any = load_cluster(name) if ":" in name else load_cluster(name, gpus=max(2, ranks))
    trace = run_here(lambda gpu: train(gpu, plan), cluster, ranks, dry=True, profile="nccl")[1]
    return float(replay(trace, cluster, profile="nccl", detail="spans").steps()[-1]["time_s"])
