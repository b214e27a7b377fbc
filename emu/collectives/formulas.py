"""What the algorithms cost, in closed form: seconds, messages, bytes. Nothing here communicates.

Legend: p ranks, n bytes (of the whole buffer: for scatter, gather, all-gather, reduce-scatter and
all-to-all that of all ranks' chunks together), α latency in s, B bandwidth in bytes/s of a rank's port
in each direction, γ seconds a byte summed. Messages and bytes are those of all ranks together.
"""

from collections.abc import Callable, Sequence
from typing import Any

from emu.collectives.cuts import even_cuts, segment_count
from emu.collectives.walks import binary_blocks

Share = Callable[[int], float]
Time = Callable[[int, float, float, float, float], float]
Count = Callable[..., int]


def log_up(p: int) -> int:
    """Return ⌈log₂p⌉."""
    return (p - 1).bit_length()


def log_down(p: int) -> int:
    """Return ⌊log₂p⌋."""
    return p.bit_length() - 1


def excess(p: int) -> int:
    """Return by how many ranks p exceeds a power of two."""
    return p - (1 << log_down(p))


def time_of(steps: Share, wire: Share, summed: Share = lambda p: 0.0) -> Time:
    """Make the formula steps(p)·α + n·(wire(p)/B + summed(p)·γ); one rank takes no time."""

    def time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        return 0.0 if p == 1 else steps(p) * alpha + n * (wire(p) / bandwidth + summed(p) * gamma)

    return time_s


def folded(steps: Share, wire: Share, summed: Share, fold_wire: Share, fold_sum: Share) -> Time:
    """Make the formula of an algorithm for q = 2^⌊log₂p⌋ ranks, with its fold where p exceeds q."""

    def time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        q = 1 << log_down(p)
        core = time_of(steps, wire, summed)(q, n, alpha, bandwidth, gamma)
        return core if p == q else core + 2 * alpha + n * (fold_wire(p) / bandwidth + fold_sum(p) * gamma)

    return time_s


def part(p: int) -> float:
    """Return the share of n that a rank exchanges at least in half an all-reduce: (p-1)/p."""
    return (p - 1) / p


def chain_time_s(segment_bytes: int, summed: bool) -> Time:
    """Make the formula of a chain of p ranks that passes segments on."""

    def time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        if p == 1:
            return 0.0
        k = segment_count(int(n), 1, segment_bytes)
        sums = (p - 1) * gamma * n / k if summed else 0.0
        return (p - 1) * alpha + (p - 2 + k) * n / (k * bandwidth) + sums

    return time_s


def segmented_ring_time_s(segment_bytes: int) -> Time:
    """Make the formula of the segmented ring."""

    def time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        if p == 1:
            return 0.0
        chunk = n / p
        piece = chunk / segment_count(-(-int(n) // p), 1, segment_bytes)
        hop_s = alpha + piece / bandwidth + gamma * piece
        return alpha + chunk / bandwidth + (2 * p - 3) * max(chunk / bandwidth, hop_s)

    return time_s


def double_tree_time_s(segment_bytes: int) -> Time:
    """Make the formula of the double binary tree; an estimate."""

    def time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        if p == 1:
            return 0.0
        k = segment_count(-(-int(n) // 2), 1, segment_bytes)
        return 4 * log_up(p) * (alpha + n / (k * bandwidth)) + 2 * n / bandwidth + gamma * n

    return time_s


def halving_doubling_time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
    """Return the time of halving-doubling in binary blocks; exact for p = 2^k, else at most this."""
    if p == 1:
        return 0.0
    (_, q), *smaller = binary_blocks(p)
    between = [(2 * alpha + n / size * (2 / bandwidth + gamma)) for _, size in smaller]
    return 2 * log_down(p) * alpha + n * part(q) * (2 / bandwidth + gamma) + sum(between)


def neighbour_time_s(reduces: bool) -> Time:
    """Make the formula of the neighbour exchange; exact for even p, else at most this."""

    def time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        if p == 1:
            return 0.0
        gamma = gamma if reduces else 0.0
        if p % 2 == 0:
            return p / 2 * alpha + n * part(p) * (1 / bandwidth + gamma)
        pairs = p // 2
        passed = (5 + 3 * (pairs - 1)) * n / p
        return (pairs + 2) * alpha + passed * (1 / bandwidth + gamma) + (n + n / p) / bandwidth + gamma * n

    return time_s


def hierarchical_time_s(p: int, n: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
    """Return the time where all links are alike and nodes are about √p large; see `two_level_time_s`."""
    size = next(g for g in range(int(p**0.5), 0, -1) if p % g == 0)
    return two_level_time_s(p // size, size, n, (alpha, bandwidth), (alpha, bandwidth), gamma)


def two_level_time_s(
    m: int, g: int, n: float, inside: tuple[float, float], between: tuple[float, float], gamma: float = 0.0
) -> float:
    """Return the hierarchical all-reduce's time: m nodes of g ranks, (α, B) in a node and between nodes.

    B between nodes is one rank's share while all g ranks of its node send.
    """
    in_node = time_of(lambda q: 2 * (q - 1), lambda q: 2 * part(q), part)
    return in_node(g, n, *inside, gamma) + in_node(m, n / g, *between, gamma)


def bruck_all_to_all_share(p: int) -> float:
    """Return how much of x a rank sends in all steps of Bruck's all-to-all: (set bits of 0..p-1)/p."""
    return sum(i.bit_count() for i in range(p)) / p


def fixed(count: Callable[[int], int]) -> Count:
    """Make a message count that depends on p alone."""
    return lambda p, n=0, itemsize=1, **_: count(p)


def volume(share: Callable[[int, int], float]) -> Count:
    """Make a byte count from share(p, n)."""
    return lambda p, n, itemsize=1, **_: int(share(p, n))


def exchange_messages(halves: int) -> Count:
    """Count the messages of `halves` walks through a power of two, with the fold in and out."""
    return fixed(lambda p: halves * (p - excess(p)) * log_down(p) + 2 * excess(p))


def segmented_messages(chunks: Callable[[int], int], times: Callable[[int], int], segment_bytes: int) -> Count:
    """Count times(p) messages a segment of the longest of chunks(p) chunks."""

    def messages(p: int, n: int, itemsize: int = 1, segment_bytes: int = segment_bytes, **_: Any) -> int:
        return times(p) * segment_count(even_cuts(n // itemsize, chunks(p))[1], itemsize, segment_bytes)

    return messages


def halving_doubling_messages(p: int, n: int = 0, itemsize: int = 1, **_: Any) -> int:
    """Count the messages of halving-doubling: inside blocks, and between each block and the next larger."""
    blocks = [size for _, size in binary_blocks(p)]
    return 2 * sum(size * log_down(size) for size in blocks) + 2 * sum(blocks[:-1])


def hierarchical_messages(p: int, n: int = 0, itemsize: int = 1, nodes: Sequence[int] = (), **_: Any) -> int:
    """Count the messages of the hierarchical all-reduce, `nodes` naming each rank's node, with rings."""
    sizes = [list(nodes).count(node) for node in dict.fromkeys(nodes)] or [p]
    m = len(sizes)
    return sum(2 * g * (g - 1) for g in sizes) + min(sizes) * 2 * m * (m - 1)


def server_messages(p: int, n: int = 0, itemsize: int = 1, servers: int = 1, **_: Any) -> int:
    """Count a push and a pull between each server and every other rank."""
    return 2 * servers * (p - 1)


def folded_gather_bytes(p: int, n: int, itemsize: int = 1, **_: Any) -> int:
    """Count the bytes of recursive doubling (equal chunks): fold, walk among q, give all out.

    The first 2·excess ranks' chunks travel in pairs.
    """
    q, over, chunk = p - excess(p), excess(p), n // p
    return over * chunk + over * n + _walk_bytes(q, over, chunk)


def folded_scatter_bytes(p: int, n: int, itemsize: int = 1, **_: Any) -> int:
    """Count the bytes of recursive halving (equal chunks): the gather's, backwards."""
    return folded_gather_bytes(p, n)


def _walk_bytes(q: int, over: int, chunk: int) -> int:
    weights = [2] * over + [1] * (q - over)  # chunks that a rank of the core brings
    total, size = 0, 1
    while size < q:
        for r in range(q):
            first = r & ~(size - 1)
            total += sum(weights[first : first + size]) * chunk
        size *= 2
    return total


def neighbour_bytes(p: int, n: int, itemsize: int = 1, **_: Any) -> int:
    """Count the bytes of the neighbour exchange (equal chunks); with odd p, a chunk and all of n more."""
    if p == 1:
        return 0
    even, chunk = p - p % 2, n // p
    odd = (n + chunk) if p % 2 else 0
    # each of the even ranks receives all chunks but its own; the last one's holds two when p is odd
    return odd + even * n - n if p % 2 == 0 else odd + (even - 1) * n


def bruck_all_to_all_bytes(p: int, n: int, itemsize: int = 1, **_: Any) -> int:
    """Count the bytes of Bruck's all-to-all."""
    return sum(i.bit_count() for i in range(p)) * n


def scatter_bytes(p: int, n: int, itemsize: int = 1, **_: Any) -> int:
    """Count the bytes of a binomial scatter or gather from rank 0 (equal chunks): each crosses popcount(r) edges."""
    return sum(r.bit_count() for r in range(p)) * (n // p)
