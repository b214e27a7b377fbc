"""One rank of PyTorch's side of `bench.training`: the same GPT under DistributedDataParallel over gloo."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from bench.training import SHAPE, Asked
from bench.turns import turns

WIDTH, HEADS = SHAPE["width"], SHAPE["heads"]


class Block(nn.Module):
    """A block with the norms before, as emu's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then feed forward."""
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.project(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Tokens and positions, blocks, a norm, and a head tied to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(SHAPE["vocabulary"], WIDTH), nn.Embedding(SHAPE["length"], WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(SHAPE["depth"]))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        y = self.token(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.token.weight)


def main(asked: Asked, folder: Path) -> None:
    """Train whenever it is this job's turn; tell each step's seconds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(GPT(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=bool(asked.fused))
    for told in turns(folder, dist.get_rank()):
        for _ in range(asked.steps):
            x = torch.randint(0, SHAPE["vocabulary"], (asked.batch, SHAPE["length"]))
            dist.barrier()
            began = time.perf_counter()
            F.cross_entropy(model(x).reshape(-1, SHAPE["vocabulary"]), x.reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            told.append(time.perf_counter() - began)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Asked(*map(int, sys.argv[1:-1])), Path(sys.argv[-1]))
