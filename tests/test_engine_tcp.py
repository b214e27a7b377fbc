import math
import threading

import numpy as np
import pytest
from engine_kit import Link, PathCluster, Route, elapsed, recv, send, trace, wait

from emu.cluster.parts import Transport
from emu.engine.resolve import resolve

MSS = 1460
RATE = 125e6  # payload bytes a second of the links


def tcp_cluster(p, latency=50e-6, buffer_bytes=math.inf, ecn=math.inf, **more):
    """Each rank has a port out and a port in, the one in behind a buffer."""
    tcp = Transport("tcp", "tcp", mtu_bytes=1500, header_bytes=40, frame_bytes=38, latency_s=latency, **more)
    links = [Link(f"r{r}.{way}", RATE, buffer_bytes=buffer_bytes if way == "in" else math.inf,
                  ecn_threshold_bytes=ecn if way == "in" else math.inf) for r in range(p) for way in ("out", "in")]
    paths = {(a, b): Route((2 * a, 2 * b + 1), latency, "tcp") for a in range(p) for b in range(p) if a != b}
    return PathCluster(tuple(links), paths, p, transports={"tcp": tcp})


def one_way(*sizes, gap_s=0.0):
    ahead = [row for n in sizes for row in (send(1, n), wait(1), elapsed(gap_s))]
    return trace(ahead, [row for n in sizes for row in (recv(0, n), wait(1))])


def slow_start_s(n, window, rtt):
    """Send a window each round trip, twice as much each time, until the link is the limit."""
    time = 0.0
    while n > window and window / rtt < RATE:
        n, time, window = n - window, time + rtt, 2 * window
    return time + n / min(RATE, window / rtt)


@pytest.mark.parametrize("latency", [1e-3, 20e-3])
@pytest.mark.parametrize("n", [1, 14_600, 50_000, 1_000_000, 30_000_000])
def test_a_lone_message_takes_slow_starts_rounds(n, latency):
    raw = resolve(one_way(n), tcp_cluster(2, latency), profile="mpi")
    assert raw.end_s == pytest.approx(slow_start_s(n, 10 * MSS, 2 * latency) + latency, rel=1e-9)


def test_the_ideal_profile_has_no_windows():
    raw = resolve(one_way(1_000_000), tcp_cluster(2, 20e-3), profile="ideal")
    assert raw.end_s == pytest.approx(20e-3 + 1e6 / RATE, rel=1e-12)


def flow_times(raw):
    return (raw.flows["end_s"] - raw.flows["start_s"]).tolist()


def test_a_window_stays_with_its_connection_until_it_is_idle_for_a_timeout():
    kept = flow_times(resolve(one_way(200_000, 200_000), tcp_cluster(2, 5e-3), profile="mpi", detail="flows"))
    apart = one_way(200_000, 200_000, gap_s=0.5)
    idle = flow_times(resolve(apart, tcp_cluster(2, 5e-3), profile="mpi", detail="flows"))
    assert kept[1] < 0.6 * kept[0]
    assert idle[1] == pytest.approx(idle[0], rel=1e-6)


def test_two_flows_into_a_small_buffer_halve_their_windows_when_it_overflows():
    # Round trip 10 ms: the link holds 1.25 MB, the buffer 0.1 MB. Windows double, 10 to 640 segments (0.93 MB each),
    # and overflow together where 2 x 640 segments meet what 1.35 MB hold.
    n = 40_000_000
    t = trace([recv(1, n), recv(2, n), wait(2)], [send(0, n), wait(1)], [send(0, n), wait(1)])
    raw = resolve(t, tcp_cluster(3, 5e-3, buffer_bytes=100_000), profile="mpi", detail="flows")
    first = raw.windows[raw.windows["src"] == 1]
    doubled = first["cwnd_bytes"][:6] / MSS
    assert doubled.tolist() == [20, 40, 80, 160, 320, 640]
    assert first["time_s"][:6] == pytest.approx(np.arange(1, 7) * 10e-3, rel=1e-9)
    assert first["what"][6] == 1
    assert first["time_s"][6] == pytest.approx(60e-3, rel=1e-9)
    assert first["cwnd_bytes"][6] == 320 * MSS
    assert first["cwnd_bytes"][7] == 321 * MSS
    assert raw.counters["tcp_timeouts"] == 0
    assert raw.queues["bytes"].max() == 100_000


@pytest.mark.parametrize("rto_ms", [1, 10, 200])
def test_one_timeout_costs_the_retransmission_timeout(rto_ms):
    n = 10 * MSS
    raw = resolve(one_way(n), tcp_cluster(2, 50e-6, buffer_bytes=1, rto_min_s=rto_ms * 1e-3), profile="mpi")
    assert raw.counters["tcp_timeouts"] >= 1
    assert raw.end_s > rto_ms * 1e-3


def incast(n, buffer_bytes=150_000, queries=15, **more):
    """A client asks n servers for 1 MB in all, again and again; return the part of queries with a timeout."""
    ask = [send(w, 100) for w in range(1, n + 1)] + [recv(w, 1_000_000 // n) for w in range(1, n + 1)]
    client = [*ask, wait(2 * n), elapsed(1e-3)] * queries
    server = [recv(0, 100), wait(1), send(0, 1_000_000 // n), wait(1)] * queries
    cluster = tcp_cluster(n + 1, 50e-6, buffer_bytes, **more)
    raw = resolve(trace(client, *[server] * n), cluster, profile="mpi", detail="flows")
    waits = raw.spans[(raw.spans["rank"] == 0) & (raw.spans["op"] == 5)][1:]  # the first finds cold windows
    lasts = waits["end_s"] - waits["start_s"]
    return float((lasts > 0.9 * more.get("rto_min_s", 0.2)).mean()), float(np.median(lasts))


def test_incast_collapses_tcp_beyond_some_ten_senders():
    assert incast(4)[0] == 0.0
    assert incast(30)[0] > 0.5
    assert incast(30)[1] > 0.2


def test_dctcp_holds_where_tcp_times_out():
    assert incast(30, ecn=30_000, congestion="dctcp")[0] == 0.0
    assert incast(40, 700_000, ecn=30_000, congestion="dctcp")[0] == 0.0


def test_a_short_timeout_removes_the_collapse():
    assert incast(30, rto_min_s=1e-3)[1] < 0.1 * incast(30)[1]


def test_the_same_losses_come_every_time():
    assert incast(12) == incast(12)


def test_twenty_runs_give_the_same_bits_while_the_host_is_busy():
    busy = [threading.Thread(target=lambda: [sum(range(1000)) for _ in range(3000)]) for _ in range(4)]
    n = 20
    client = [*[recv(w, 50_000) for w in range(1, n + 1)], wait(n)] * 3
    t = trace(client, *[[send(0, 50_000), wait(1)] * 3] * n)
    cluster = tcp_cluster(n + 1, 50e-6, 64_000)
    for thread in busy:
        thread.start()
    runs = [resolve(t, cluster, profile="mpi", detail="flows") for _ in range(20)]
    for thread in busy:
        thread.join()
    assert runs[0].counters["tcp_timeouts"] > 0
    for name in ("spans", "flows", "windows", "queues", "link_bytes"):
        assert len({getattr(raw, name).tobytes() for raw in runs}) == 1, name
