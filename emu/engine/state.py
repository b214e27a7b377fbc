"""The engine's state as numpy arrays, and the table of addresses through which compiled code reaches them."""

import math
from typing import Any

import numpy as np

from emu.engine import layout as L

# A route stands in the table for messages to oneself, which take no time.
SELF_ROUTE = 0
CHANNELS_A_LANE = 32  # fewer are not worth to forget: a lane comes back to its peers


def whole_lines(size: int, dtype: Any) -> np.ndarray:
    """Return an array of so many entries, not filled in, that begins with a line of the processor's cache."""
    dtype = np.dtype(dtype)
    room = np.empty(size * dtype.itemsize + L.CACHE_LINE, np.uint8)
    skip = -room.ctypes.data % L.CACHE_LINE
    return room[skip : skip + size * dtype.itemsize].view(dtype)


class State:
    """All arrays of one engine. Arrays grow by doubling; compiled code sees the new ones at its next call."""

    def __init__(self, links: int, world_size: int):
        self.table = np.zeros(L.TABLE, np.int64)
        self.address: int = self.table.ctypes.data  # what compiled code is given
        self.arrays: dict[int, np.ndarray] = {}
        self._knots: dict[tuple, int] = {}
        self.count = self._put(L.T_COUNT, np.zeros(L.COUNTERS, np.int64))
        self.real = self._put(L.T_REAL, np.zeros(L.REALS, np.float64))
        self.real[[L.HORIZON, L.NEXT_FAULT]] = math.inf
        self.count[[L.READY_HEAD, L.READY_TAIL]] = -1
        self.count[L.FREE] = -1
        self.count[L.NODE_SHIFT] = 2
        self.count[L.WORLD] = world_size
        self.count[L.LINK_COUNT] = links
        for slot, dtype in _EMPTY.items():
            self._put(slot, np.zeros(1, dtype))
        self._put(L.T_LINK, whole_lines(links, L.LINK))[:] = np.zeros((), L.LINK)
        self._put(L.T_FAN, np.zeros(links + 1, L.FAN))
        self[L.T_LINK]["hub"] = -1
        self[L.T_LINK]["head"] = self[L.T_LINK]["group_head"] = -1
        self[L.T_LINK]["group_finish"] = self[L.T_LINK]["scheduled"] = math.inf
        self._put(L.T_TOUCHED, np.zeros(links + 1, np.int32))
        self._put(L.T_DIRTY, np.zeros(links + 1, np.int32))
        self._put(L.T_REGROUP, np.zeros(links + 1, np.int32))
        self._put(L.T_QUEUE, np.zeros(L.QUEUES * L.QUEUE_SIZE, L.EVENT))
        self._put(L.T_QUEUE_ENDS, np.zeros(2 * L.QUEUES, np.int64))
        self._put(L.T_QUEUE_TIMES, np.array([-math.inf] * L.QUEUES + [math.inf] * (L.QUEUES + 1)))
        self._put(L.T_HOST_ROUTE, np.full(2 * world_size, -1, np.int32))
        rank = self._put(L.T_RANK, np.zeros(world_size, L.RANK))
        for name in ("waiting", "wild_head", "wild_tail", "near_head", "near_tail"):
            rank[name] = -1
        rank["speed"], rank["death"] = 1.0, math.inf
        self._grow_hash(1024)

    def _put(self, slot: int, array: np.ndarray) -> np.ndarray:
        assert array.flags.c_contiguous
        self.arrays[slot] = array
        self.table[slot] = array.ctypes.data
        return array

    def __getitem__(self, slot: int) -> np.ndarray:
        return self.arrays[slot]

    def put(self, slot: int, array: np.ndarray) -> np.ndarray:
        """Replace an array."""
        return self._put(slot, array)

    def room(self, slot: int, size: int, fill: Any = 0) -> np.ndarray:
        """Make array `slot` at least `size` long, at least doubling it where it must grow."""
        old = self[slot]
        if len(old) >= size:
            return old
        new = whole_lines(max(size, 2 * len(old)), old.dtype)
        new[: len(old)] = old
        new[len(old):] = fill
        return self._put(slot, new)

    def exact_room(self, slot: int, size: int, used: int) -> np.ndarray:
        """Make array `slot` at least `size` long, where `used` entries are in use; grow a little at least."""
        old = self[slot]
        if len(old) >= size:
            return old
        new = whole_lines(max(size, used + used // 2), old.dtype)
        new[:used] = old[:used]
        return self._put(slot, new)

    def append_rows(self, rows: np.ndarray, ids: np.ndarray) -> int:
        """Add rows, with their numbers in their rank's log, after those before; return where they begin."""
        first = int(self.count[L.ROW_COUNT])
        end = first + len(rows)
        self.exact_room(L.T_ROWS, end, first)[first:end] = rows
        self.exact_room(L.T_ROW_ID, end, first)[first:end] = ids
        self.count[L.ROW_COUNT] = end
        return first

    def more_messages(self, capacity: int) -> None:
        """Make room for so many messages in all."""
        count = self.count
        old = int(count[L.MSG_CAPACITY])
        if capacity <= old:
            return
        msg = self.room(L.T_MSG, capacity, np.zeros((), L.MSG))
        capacity = len(msg)
        # The last free slot stays free: it marks the end of the list. New slots come before old ones.
        msg["next"][old:capacity] = np.arange(old + 1, capacity + 1)
        msg["next"][capacity - 1] = count[L.FREE]
        msg["mark"][old:capacity] = -1
        count[L.FREE] = old
        count[L.MSG_CAPACITY] = capacity
        self.room(L.T_NODE, (capacity << int(count[L.NODE_SHIFT])) * 2)
        self.room(L.T_SET, capacity)
        self.room(L.T_NEW, 3 * capacity)
        self.room(L.T_LOST, capacity, np.zeros((), L.LOST))
        self.room(L.T_FILL_HEAP, capacity + int(count[L.LINK_COUNT]) + 1, np.zeros((), L.EVENT))
        self.more_heap()

    def more_heap(self) -> None:
        """Make room for what one instant can add to the heap, at least doubling it."""
        count = self.count
        instant = 3 * (count[L.MSG_CAPACITY] + count[L.TCP_COUNT]) + 2 * count[L.LINK_COUNT] + count[L.LANE_COUNT]
        heap = self.room(L.T_HEAP, int(2 * (count[L.HEAP_COUNT] + instant)), np.zeros((), L.EVENT))
        count[L.HEAP_CAPACITY] = len(heap)

    def more_hops(self, hops: int) -> None:
        """Make room for routes of so many links."""
        old = int(self.count[L.NODE_SHIFT])
        new = max(old, (hops - 1).bit_length())
        if new == old:
            return
        capacity = int(self.count[L.MSG_CAPACITY])
        wide = np.zeros((capacity, 1 << new, 2), np.int32)
        kept = self[L.T_NODE][: (capacity << old) * 2].reshape(capacity, 1 << old, 2)
        wide[:, : 1 << old] = _renumber(kept, old, new)
        self._put(L.T_NODE, wide.reshape(-1) if capacity else np.zeros(2, np.int32))
        link = self[L.T_LINK]
        link["head"] = _renumber(link["head"], old, new)
        self.count[L.NODE_SHIFT] = new

    def more_channels(self) -> None:
        """Make room for more channels; those where nobody waits are forgotten first."""
        count = self.count
        used = int(count[L.CHANNEL_COUNT])
        channel = self[L.T_CHANNEL]
        kept = np.flatnonzero(channel["head"][:used] >= 0)
        # A channel in use by a message on the way is still named by it.
        msg = self[L.T_MSG]
        busy = msg["chan"][(msg["status"] & (L.SENT | L.RECEIVED)) != 0]
        keep = channel["ordered"][:used] != 0
        keep[kept] = True
        keep[busy[(busy >= 0) & (busy < used)]] = True
        if keep.sum() * 2 >= used or used < CHANNELS_A_LANE * count[L.LANE_COUNT]:
            self.room(L.T_CHANNEL, max(256, 2 * used), np.zeros((), L.CHANNEL))
            count[L.CHANNEL_CAPACITY] = len(self[L.T_CHANNEL])
            self._grow_hash(max(1024, 4 * used))
            return
        number = np.cumsum(keep) - 1
        channel[: keep.sum()] = channel[:used][keep]
        count[L.CHANNEL_COUNT] = keep.sum()
        live = (msg["status"] & (L.SENT | L.RECEIVED)) != 0
        live &= (msg["chan"] >= 0) & (msg["chan"] < used)
        msg["chan"][live] = number[msg["chan"][live]]
        self[L.T_LANE]["send_chan"] = self[L.T_LANE]["recv_chan"] = -1
        self._grow_hash(len(self[L.T_CHANNEL_HASH]))

    def _grow_hash(self, size: int) -> None:
        from emu.engine.matching import rehash

        size = 1 << (size - 1).bit_length()
        self._put(L.T_CHANNEL_HASH, np.full(size, -1, np.int32))
        self.count[L.CHANNEL_MASK] = size - 1
        if self.count[L.CHANNEL_COUNT]:
            rehash(self.address)

    def more_log(self) -> None:
        """Make room in the logs of windows and queues, at least doubling them."""
        size = 2 * int(self.count[L.LOG_CAPACITY]) + 8 * int(self.count[L.TCP_COUNT] + self.count[L.LINK_COUNT]) + 64
        self.exact_room(L.T_WINDOW_LOG, size, int(self.count[L.WINDOW_LOG]))
        self.exact_room(L.T_QUEUE_LOG, size, int(self.count[L.QUEUE_LOG]))
        self.count[L.LOG_CAPACITY] = size

    def knots(self, by_size: tuple[tuple[float, float], ...]) -> tuple[int, int]:
        """Take in sizes and as what their bytes count (see `stretched`); return the first's number, and how many."""
        if not by_size:
            return 0, 0
        first = self._knots.get(by_size)
        if first is None:
            first = self._knots[by_size] = sum(len(known) for known in self._knots)
            flat = np.array([(size, size * times) for size, times in by_size], np.float64).reshape(-1)
            self.room(L.T_KNOT, 2 * first + len(flat))[2 * first : 2 * first + len(flat)] = flat
        return first, len(by_size)

    def more_requests(self, lane: int) -> None:
        """Double the places for unfinished requests of a lane."""
        e = self[L.T_LANE][lane]
        old, base = int(e["req_mask"]) + 1, int(e["req_base"])
        first = self.new_requests(2 * old)
        numbers = np.arange(int(e["req_no"]) - old, int(e["req_no"]))
        done, peer = self[L.T_REQUEST], self[L.T_REQUEST_PEER].reshape(-1, 2)
        done[first + (numbers & (2 * old - 1))] = done[base + (numbers & (old - 1))]
        peer[first + (numbers & (2 * old - 1))] = peer[base + (numbers & (old - 1))]
        e["req_base"], e["req_mask"] = first, 2 * old - 1

    def new_requests(self, size: int) -> int:
        """Take `size` places for requests; return the first."""
        first = int(self.count[L.REQUEST_COUNT])
        self.room(L.T_REQUEST, first + size, -1.0)[first : first + size] = -1.0
        self.room(L.T_REQUEST_PEER, 2 * (first + size), -1)
        self.count[L.REQUEST_COUNT] = first + size
        return first

    def bytes(self) -> int:
        """Return the memory that the state takes."""
        return sum(a.nbytes for a in self.arrays.values())


def _renumber(node: np.ndarray, old: int, new: int) -> np.ndarray:
    """Number nodes (message, hop) for another number of hops a message; -1 stays."""
    return np.where(node < 0, node, ((node >> old) << new) | (node & ((1 << old) - 1)))


_EMPTY: dict[int, Any] = {
    L.T_LANE: L.LANE, L.T_MSG: L.MSG, L.T_ROUTE: L.ROUTE, L.T_CHANNEL: L.CHANNEL, L.T_HEAP: L.EVENT,
    L.T_ROWS: L.ROW, L.T_ROW_ID: np.int32, L.T_SEGMENT: L.SEGMENT, L.T_TEMPLATE: np.int64,
    L.T_GROUP: np.int64, L.T_MEMBER: np.int32, L.T_SPAN: L.SPAN, L.T_FLOW: L.FLOW, L.T_GPU: np.float64,
    L.T_EVENT_TIME: np.float64, L.T_EVENT_WAITER: np.int32, L.T_NODE: np.int32, L.T_ROUTE_LINKS: np.int32,
    L.T_SET: np.int32, L.T_NEW: np.int32, L.T_FILL_HEAP: L.EVENT, L.T_PAIR_KEY: np.int64,
    L.T_PAIR_ROUTE: np.int32, L.T_FAULT: np.float64, L.T_PAUSE: np.float64, L.T_TCP: L.CONNECTION,
    L.T_PORT: L.PORT, L.T_LOST: L.LOST, L.T_SHUFFLE: np.int32, L.T_WINDOW_LOG: L.WINDOW, L.T_QUEUE_LOG: L.QUEUE,
    L.T_REQUEST: np.float64, L.T_REQUEST_PEER: np.int32,
    L.T_CODE: np.uint8, L.T_LENGTH: np.int64, L.T_COLUMN: np.int32, L.T_KNOT: np.float64,
}  # fmt: skip
