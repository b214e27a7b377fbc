"""The emulated GPU: its memory ledger, streams and events, kernels, and arrays without bytes."""

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.comm.local import World, world_comm
from emu.comm.recording import Log, Tables
from emu.errors import ConfigError, DeviceOutOfMemory
from emu.gpu import Cost, DryArray, Gpu, Memory
from emu.gpu.arrays import NumpyArrays, arrays_of, dtype_of
from emu.program import run_here
from emu.trace import Op


def make(capacity=1 << 20, dry=False):
    """Return one GPU with so much memory, and its log."""
    log = Log(0, Tables())
    return Gpu(world_comm(World(1, dry), log), arrays_of("numpy", dry), Memory(capacity, "gpu")), log


@pytest.mark.parametrize("dry", [False, True])
def test_memory_is_counted_while_an_array_or_a_view_of_it_lives(dry):
    gpu, _ = make(dry=dry)
    x = gpu.empty((100,), "float32", purpose="weights")
    view = x[10:20].reshape(2, 5)
    assert gpu.memory.live_bytes == 400 and gpu.memory.live["weights"] == 400
    del x
    assert gpu.memory.live_bytes == 400
    del view
    assert gpu.memory.live_bytes == 0
    assert gpu.memory.peak_bytes == 400 and gpu.memory.at_peak == {"weights": 400}


def test_the_breakdown_is_that_of_the_moment_of_the_peak():
    gpu, _ = make()
    a = gpu.empty((100,), "int8", purpose="weights")
    b = gpu.empty((50,), "int8", purpose="activations")
    del b
    c = gpu.empty((40,), "int8", purpose="gradients")
    assert gpu.memory.at_peak == {"weights": 100, "activations": 50}
    assert gpu.memory.peak == {"weights": 100, "activations": 50, "gradients": 40}
    del a, c


@pytest.mark.parametrize("dry", [False, True])
def test_out_of_memory_tells_what_is_held_what_is_asked_and_what_would_help(dry):
    gpu, _ = make(capacity=1000, dry=dry)
    held = gpu.empty((900,), "uint8", purpose="optimizer state")
    with pytest.raises(DeviceOutOfMemory) as full:
        gpu.empty((200,), "uint8", purpose="weights")
    text = str(full.value)
    assert "optimizer state 900 B" in text and "200 B more for weights" in text and "100 B too much" in text
    assert "ZeRO" in text
    assert gpu.memory.live_bytes == held.nbytes


def test_exactly_full_fits():
    gpu, _ = make(capacity=1000)
    held = gpu.empty((1000,), "uint8")
    assert gpu.memory.live_bytes == held.nbytes == 1000


def test_a_kernel_runs_on_real_arrays_and_is_recorded_with_its_cost():
    gpu, log = make()
    x = gpu.full((4,), 2.0)

    def double(x):
        x *= 2

    gpu.launch(double, x, cost=Cost(flops=4, bytes=32))
    assert x.tolist() == [4, 4, 4, 4]
    row = log.rows()[-1]
    assert (row["op"], row["n"], row["x"]) == (Op.COMPUTE, 32, 4.0)
    assert list(log.tables.labels)[row["b"]] == "double"


def test_a_dry_kernel_is_recorded_and_not_run():
    gpu, log = make(dry=True)
    gpu.launch(lambda x: 1 / 0, gpu.empty((4,)), cost=Cost(flops=4, bytes=32), name="never")
    assert len(log.rows()) == 1


def test_an_unknown_dtype_of_a_cost_is_refused():
    gpu, _ = make()
    with pytest.raises(ConfigError, match="float31"):
        gpu.launch(lambda: None, cost=Cost(1, 1, "float31"), name="k")


def test_streams_events_and_spans_record_what_waits_for_what():
    gpu, log = make()
    with gpu.span("outer", 7):
        first = gpu.record()
        with gpu.stream("comm"):
            gpu.wait(first)
            second = gpu.record()
        gpu.wait(second)
    told = [(Op(int(row["op"])).name, int(row["stream"]), int(row["a"])) for row in log.rows()]
    assert told[1:-1] == [("RECORD", 0, 0), ("AWAIT", 1, 1), ("RECORD", 1, 0), ("AWAIT", 0, 1)]
    assert told[0][0] == "BEGIN" and told[-1][0] == "END" and log.rows()[0]["b"] == 7


def test_a_span_closes_when_an_error_passes_through():
    gpu, log = make()
    with pytest.raises(ZeroDivisionError), gpu.span("outer"):
        1 / 0  # noqa: B018
    assert [int(op) for op in log.rows()["op"]] == [Op.BEGIN, Op.END]


def test_unrecorded_work_leaves_no_rows():
    gpu, log = make()
    with gpu.unrecorded():
        gpu.array(np.ones(3))
        gpu.launch(lambda: None, cost=Cost(1, 1), name="k")
    assert len(log.rows()) == 0


def test_host_data_is_copied_and_the_copy_recorded():
    gpu, log = make()
    data = np.arange(5.0)
    x = gpu.array(data)
    data[:] = 0
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert gpu.to_host(x).tolist() == [0, 1, 2, 3, 4]
    assert [(int(r["op"]), int(r["a"]), int(r["n"])) for r in log.rows()] == [(Op.COPY, 0, 40), (Op.COPY, 1, 40)]


def test_decide_asks_the_data_or_states_the_dry_branch():
    gpu, _ = make()
    assert gpu.decide("overflow", True, dry=False) is True and gpu.decisions == {}
    gpu, _ = make(dry=True)
    assert gpu.decide("overflow", lambda: 1 / 0, dry=False) is False
    assert gpu.decisions == {"overflow": False}


def test_dry_arrays_have_shapes_views_and_no_memory():
    x = DryArray.of((1 << 20, 1 << 10), "float32")
    assert x.nbytes == 1 << 32 and x[5:7].shape == (2, 1 << 10) and x.reshape(-1).shape == (1 << 30,)
    assert x.view("uint8").shape == (1 << 20, 1 << 12) and x.T.shape == (1 << 10, 1 << 20)
    assert x.reshape(-1)[3:3].size == 0 and DryArray.of((), "float64").shape == ()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0],
        lambda x: float(x[:1]),
        lambda x: bool(x[:1]),
        lambda x: x + 1,
        lambda x: np.sum(x),
        lambda x: list(x),
        lambda x: x.tolist(),
        lambda x: x.item(0),
        lambda x: x.tobytes(),
        lambda x: x.sum(),
        lambda x: x == x,
        lambda x: np.asarray(x).sum() if type(np.asarray(x)) is DryArray else x.item(),
    ],
)
def test_reading_a_value_of_a_dry_array_is_an_error_with_the_line(read):
    with pytest.raises(ConfigError, match=r"test_gpu.py:\d+: a dry run has no values"):
        read(DryArray.of((4,), "float32"))


def test_writing_to_a_dry_array_does_nothing():
    x = DryArray.of((4,), "float32")
    x[1:3] = 5
    x.fill(1)
    assert x.shape == (4,)


def test_bfloat16_is_a_dtype_and_nonsense_is_not():
    assert dtype_of("bfloat16").itemsize == 2
    with pytest.raises(ConfigError, match="float99"):
        dtype_of("float99")


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="numpy, cupy"):
        arrays_of("tpu")
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"a GPU that cupy sees is expected"):
            arrays_of("cupy")


def test_synchronize_tells_each_rank_its_emulated_time():
    def main(gpu):
        gpu.launch(lambda: None, cost=Cost(bytes=10**9 * (gpu.rank + 1)), name="k")
        first = gpu.synchronize()
        gpu.launch(lambda: None, cost=Cost(bytes=10**9), name="k")
        return first, gpu.synchronize()

    cluster = load_cluster("pcie4", {}, 2)
    (a, b), (c, d) = run_here(main, cluster, 2)[0]
    each = 1e9 / (cluster.gpu(0).memory_bytes_per_s * cluster.gpu(0).memory_efficiency)
    assert a == pytest.approx(each) and c == pytest.approx(2 * each)
    assert b == pytest.approx(2 * each) and d == pytest.approx(3 * each)


@pytest.mark.gpu
def test_cupy_trains_like_numpy():
    from emu.parallel.training import Plan, train

    cluster = load_cluster("pcie4", {}, 2)
    plan = Plan(steps=3, batch=32)
    host, device = (run_here(lambda gpu: train(gpu, plan), cluster, 2, device=d)[0][0] for d in ("numpy", "cupy"))
    np.testing.assert_allclose(device.losses, host.losses, rtol=1e-4)
    assert device.replicas_equal


def test_host_memory_is_reused_once_no_view_refers_to_an_array_any_more():
    arrays, large = NumpyArrays(), (1 << 20,)
    first = arrays.empty(large, np.dtype("float32"))
    place, view = first.ctypes.data, first[4:].reshape(-1, 3)
    del first
    other = arrays.empty(large, np.dtype("float32"))
    assert other.ctypes.data != place
    view[...] = 1
    del view
    assert arrays.empty((1 << 19,), np.dtype("float64")).ctypes.data == place


def test_host_memory_that_is_free_is_never_more_than_what_is_used_and_one_array():
    arrays, most = NumpyArrays(), 0
    kept = arrays.empty((1 << 20,), np.dtype("uint8"))
    for size in range(1 << 18, 1 << 20, 1 << 17):
        arrays.empty((size,), np.dtype("uint8"))
        most = max(most, sum(n * len(blocks) for n, blocks in arrays._free.items()))
    assert 0 < most <= kept.nbytes + (1 << 20)
