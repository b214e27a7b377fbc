"""Flows that come, go and are held back at almost the same instant, or by almost the same rate."""

import math

import numpy as np
import pytest
from engine_kit import Link, PathCluster, Route, elapsed, recv, rows, send, star, trace, wait
from reference import finish_times

from emu.engine.resolve import resolve

TIES = (0.0, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9)


def almost(rng, values, tie):
    return np.asarray(values, float) * (1.0 + tie * rng.uniform(-1, 1, len(values)))


def workers_and_servers(seed):
    """Workers push and push again: most through one server's links alone, some to another."""
    rng = np.random.default_rng(seed)
    tie, began = rng.choice(TIES), rng.choice([0.0, 1.0, 1000.0])
    chains, length, servers = int(rng.integers(6, 20)), int(rng.integers(2, 6)), int(rng.integers(1, 4))
    common = int(rng.integers(1, 3))
    rates = np.concatenate([np.repeat(rng.choice([1e6, 2e6, 3e6], servers), common),
                            rng.choice([1e6, 5e6, 1e5], chains, p=[0.6, 0.35, 0.05])])
    paths, starts, sizes, after = [], [], [], []
    astray = 0.0 if rng.random() < 0.5 else 0.1
    size = int(rng.choice([1, 1000, 10**6, 10**9]))
    for c in range(chains):
        server = c % servers
        for step in range(length):
            to = int(rng.integers(servers)) if rng.random() < astray else server
            paths.append((servers * common + c, *range(to * common, to * common + common)))
            after.append(len(paths) - 2 if step else -1)
            starts.append(0.0 if step else began * (1.0 + tie * rng.uniform(-1, 1)))
            sizes.append(size + int(rng.integers(-1, 2) if rng.random() < 0.3 and size > 1 else 0))
    caps = np.where(rng.random(len(paths)) < 0.05, rng.choice([1e5, 2e5, 1e6], len(paths)), math.inf)
    return almost(rng, rates, tie), paths, almost(rng, caps, tie), starts, sizes, after


def rails(seed):
    """Chains of flows over few links of almost equal rates, several links each."""
    rng = np.random.default_rng(seed)
    tie, began = rng.choice(TIES), rng.choice([0.0, 1.0, 1000.0])
    links, chains, length = int(rng.integers(2, 9)), int(rng.integers(2, 12)), int(rng.integers(1, 5))
    rates = rng.choice([1e6, 2e6, 4e6], links, p=[0.6, 0.2, 0.2])
    paths, starts, sizes, after = [], [], [], []
    size = int(rng.choice([1, 1000, 10**6, 10**9]))
    for _ in range(chains):
        for step in range(length):
            hops = int(rng.integers(1, min(links, 4) + 1))
            paths.append(tuple(rng.choice(links, size=hops, replace=False).tolist()))
            after.append(len(paths) - 2 if step else -1)
            starts.append(0.0 if step else began * (1.0 + tie * rng.uniform(-1, 1)))
            sizes.append(size * int(rng.integers(1, 3)) + int(rng.integers(0, 2)))
    caps = np.where(rng.random(len(paths)) < 0.2, rng.choice([2.5e5, 5e5, 1e6], len(paths)), math.inf)
    return almost(rng, rates, tie), paths, almost(rng, caps, tie), starts, sizes, after


def crossed_pairs(seed):
    """Crowds from one port to one other, several at once, and flows from the port of one to that of another."""
    rng = np.random.default_rng(seed)
    tie, ports = rng.choice(TIES), int(rng.integers(2, 5))
    rates = np.repeat(rng.choice([1e6, 2e6], 2), ports)
    paths, starts, sizes, after = [], [], [], []
    for _ in range(int(rng.integers(12, 40))):
        a = int(rng.integers(ports))
        b = a if rng.random() < 0.9 else int(rng.integers(ports))
        for step in range(int(rng.integers(1, 4))):
            paths.append((a, ports + b))
            after.append(len(paths) - 2 if step else -1)
            starts.append(0.0 if step else float(rng.choice([0.0, 0.0, 3.0])) * (1.0 + tie * rng.uniform(-1, 1)))
            sizes.append(10**6 + int(rng.integers(0, 3)))
            b = b if rng.random() < 0.7 else int(rng.integers(ports))
    return almost(rng, rates, tie), paths, np.full(len(paths), math.inf), starts, sizes, after


def engine_times(rates, paths, caps, starts, sizes, after):
    """Let each chain be a rank that sends, and each flow's receiver a rank of its own."""
    heads = [f for f, g in enumerate(after) if g < 0]
    chain = np.cumsum([g < 0 for g in after]) - 1
    logs = [[] for _ in heads]
    for f, c in enumerate(chain):
        logs[c] += [elapsed(starts[f]), send(len(heads) + f, sizes[f]), wait(1)]
    routes = {(int(c), len(heads) + f): Route(paths[f], 0.25, cap_bytes_per_s=float(caps[f]))
              for f, c in enumerate(chain)}
    cluster = PathCluster(
        tuple(Link(f"l{i}", float(r)) for i, r in enumerate(rates)), routes, len(heads) + len(paths))
    logs += [[recv(int(c), sizes[f]), wait(1)] for f, c in enumerate(chain)]
    raw = resolve(trace(*logs), cluster, detail="flows")
    got = np.full(len(paths), math.nan)
    got[raw.flows["dst"] - len(heads)] = raw.flows["end_s"]
    return got


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("case", [workers_and_servers, rails, crossed_pairs])
def test_flows_that_almost_tie_end_when_the_slow_reference_says(case, block):
    for seed in range(60 * block, 60 * block + 60):
        rates, paths, caps, starts, sizes, after = case(seed)
        got = engine_times(rates, paths, caps, starts, sizes, after)
        want = finish_times(paths, caps, rates, starts, sizes, after)
        assert got == pytest.approx(want, rel=2e-12), f"seed {seed}"


@pytest.mark.parametrize("perturbation", TIES[1:])
@pytest.mark.parametrize("p", [12, 24])
def test_exchanges_with_perturbed_sizes_end_when_the_plain_ones_do(p, perturbation):
    rank = [entry for r in range(3) for q in range(1, p) for entry in (recv(q, 10**6, r), send(q, 10**6, r))]
    log = rows(*rank, wait(len(rank)))
    logs = []
    for r in range(p):
        mine = log.copy()
        mine["a"][:-1] = (r + mine["a"][:-1]) % p
        logs.append(mine)
    want = resolve(trace(*logs), star(p), profile="mpi").end_s
    for seed in range(4):
        got = resolve(trace(*logs), star(p), profile="mpi", perturbation=perturbation, seed=seed).end_s
        assert got == pytest.approx(want, rel=1e-6)
