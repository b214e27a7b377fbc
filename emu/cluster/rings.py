"""Rings through the GPUs of one node: over the best links, and as many as the links allow."""

from collections.abc import Callable, Mapping, Sequence

_EXHAUSTIVE = 8  # up to so many GPUs every ring is looked at: 2,520 of them


def ring_through(gpus: Sequence[int], rate: Callable[[int, int], float]) -> list[int]:
    """Return the GPUs in the order of the ring whose slowest hop is fastest, then whose hops sum highest.

    Of equal rings the first in order of GPU numbers. Beyond 8 GPUs the ring grows greedily, each time to the
    nearest GPU left.
    """
    if len(gpus) < 3:
        return list(gpus)
    rates = {(a, b): rate(a, b) for a in gpus for b in gpus if a != b}
    if len(gpus) > _EXHAUSTIVE:
        return _greedy(gpus, rates)
    return _best(gpus, rates)


def _greedy(gpus: Sequence[int], rates: Mapping[tuple[int, int], float]) -> list[int]:
    ring, left = [gpus[0]], list(gpus[1:])
    while left:
        near = max(left, key=lambda gpu: (rates[ring[-1], gpu], -gpu))
        ring.append(near)
        left.remove(near)
    return ring


def _best(gpus: Sequence[int], rates: Mapping[tuple[int, int], float]) -> list[int]:
    """Search depth first; a part whose slowest hop is below the best ring's is given up."""
    first, best, best_score = gpus[0], list(gpus), (-1.0, -1.0)

    def grow(ring: list[int], left: list[int], slowest: float, total: float) -> None:
        nonlocal best, best_score
        if slowest < best_score[0]:
            return
        if not left:
            hop = min(rates[ring[-1], first], rates[first, ring[-1]])
            score = (min(slowest, hop), round(total + hop, -3))  # sums in another order differ in the last digits
            if score > best_score:
                best, best_score = list(ring), score
            return
        for gpu in left:
            hop = min(rates[ring[-1], gpu], rates[gpu, ring[-1]])
            grow([*ring, gpu], [other for other in left if other != gpu], min(slowest, hop), total + hop)

    grow([first], list(gpus[1:]), float("inf"), 0.0)
    return best


def disjoint_rings(gpus: Sequence[int], lines: Mapping[tuple[int, int], int]) -> list[tuple[int, ...]]:
    """Return rings over direct links, no line used twice, as many as there can be; empty if there is none.

    `lines[a, b]` is the number of lines between two GPUs, the same in both directions.
    """
    if len(gpus) < 3:
        return []
    cycles = _cycles(gpus, lines)
    left = {frozenset(pair): count for pair, count in lines.items()}
    most = min(sum(n for pair, n in lines.items() if gpu in pair) for gpu in gpus) // 2
    return _pack(cycles, left, most, 0) if most else []


def _cycles(gpus: Sequence[int], lines: Mapping[tuple[int, int], int]) -> list[tuple[int, ...]]:
    """List every ring over links that exist, each once, in order of GPU numbers."""
    linked = {gpu: [other for other in gpus if (gpu, other) in lines or (other, gpu) in lines] for gpu in gpus}
    found: list[tuple[int, ...]] = []

    def grow(ring: list[int]) -> None:
        if len(ring) == len(gpus):
            if gpus[0] in linked[ring[-1]] and ring[1] < ring[-1]:
                found.append(tuple(ring))
            return
        for gpu in linked[ring[-1]]:
            if gpu not in ring:
                grow([*ring, gpu])

    grow([gpus[0]])
    return found


def _pack(
    cycles: Sequence[tuple[int, ...]], left: dict[frozenset[int], int], most: int, start: int
) -> list[tuple[int, ...]]:
    """Choose rings so that no line is used twice; stop as soon as `most` are found."""
    best: list[tuple[int, ...]] = []
    for i in range(start, len(cycles)):
        edges = [frozenset(pair) for pair in zip(cycles[i], (*cycles[i][1:], cycles[i][0]), strict=True)]
        if any(left[edge] < 1 for edge in edges):
            continue
        for edge in edges:
            left[edge] -= 1
        more = [cycles[i], *_pack(cycles, left, most - 1, i)]
        for edge in edges:
            left[edge] += 1
        if len(more) > len(best):
            best = more
        if len(best) >= most:
            break
    return best
