"""mpi4py's face: scripts as people write them, with their own assertions, on coroutines of this process."""

import textwrap

import pytest

from emu.cluster import link_cluster
from emu.errors import ConfigError, DeadlockError, MismatchError
from emu.face.launch import Plan, run_here
from emu.face.script import read_script

HEADER = """
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size
"""


@pytest.fixture
def run(tmp_path, capsys):
    """Run the text of a script on so many ranks; return what it printed, and its trace."""

    def start(text, ranks=3, **plan):
        path = tmp_path / "script.py"
        path.write_text(HEADER + textwrap.dedent(text))
        cluster = link_cluster("latency=1 us, bandwidth=80 Gb/s", max(ranks, 2))
        ended = run_here(Plan(read_script(str(path), ["one", "two"]), cluster, **plan), ranks)
        assert ended.status == 0
        return capsys.readouterr().out, ended.trace

    return start


MESSAGES = {
    "buffers": """
        x, y = np.full(5, rank, 'f8'), np.zeros(5)
        request = comm.Isend(x, right, tag=3)
        status = MPI.Status()
        comm.Recv(y, source=left, tag=3, status=status)
        request.Wait()
        assert (y == left).all() and (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 3, 5)
    """,
    "a shorter message": """
        y = np.zeros(10)
        request = comm.Irecv(y, left)
        comm.Send(np.ones(4), right)
        status = MPI.Status()
        request.Wait(status)
        assert y.sum() == 4 and status.Get_count(MPI.DOUBLE) == 4 and status.Get_count() == 32
    """,
    "specs": """
        x = np.arange(12, dtype='f4')
        y = np.zeros(12, 'f4')
        comm.Sendrecv([x, 4, MPI.FLOAT], right, 0, [y, MPI.FLOAT], left, 0)
        assert y.tolist() == [0, 1, 2, 3] + [0] * 8
        b = bytearray(6)
        comm.Sendrecv(b"hello!", right, 0, b, left, 0)
        assert b == b"hello!"
        from array import array
        a, c = array('i', [rank] * 3), array('i', [0] * 3)
        comm.Sendrecv([a, MPI.INT], right, 0, [c, MPI.INT], left, 0)
        assert list(c) == [left] * 3
    """,
    "sendrecv_replace": """
        x = np.full(3, rank)
        comm.Sendrecv_replace(x, right, source=left)
        assert (x == left).all()
    """,
    "proc_null": """
        x = np.full(3, rank)
        status = MPI.Status()
        comm.Sendrecv(x, MPI.PROC_NULL, 0, x, MPI.PROC_NULL, status=status)
        assert (x == rank).all() and status.source == MPI.PROC_NULL
        assert comm.recv(source=MPI.PROC_NULL) is None
    """,
    "a column by a datatype": """
        a = np.arange(16, dtype='f8').reshape(4, 4) + 100 * rank
        column = MPI.DOUBLE.Create_vector(4, 1, 4).Commit()
        comm.Sendrecv([a[0, 1:], 1, column], right, 0, [a, 1, column], left, 0)
        assert a[:, 0].tolist() == [1 + 100 * left + 4 * i for i in range(4)]
        part = MPI.DOUBLE.Create_subarray([4, 4], [2, 2], [1, 1]).Commit()
        b = np.zeros((4, 4))
        comm.Sendrecv([a, 1, part], rank, 0, [b, 1, part], rank, 0)
        assert (b[1:3, 1:3] == a[1:3, 1:3]).all() and b.sum() == a[1:3, 1:3].sum()
    """,
    "objects": """
        request = comm.isend({"rank": rank, "big": "x" * 200_000}, right, tag=7)
        status = MPI.Status()
        got = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        request.wait()
        assert got["rank"] == left and len(got["big"]) == 200_000 and (status.source, status.tag) == (left, 7)
        class Mine:
            pass
        assert isinstance(comm.sendrecv(Mine(), right, source=left), Mine)
    """,
    "probes": """
        comm.send([rank] * 3, right, tag=rank)
        status = MPI.Status()
        comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert (status.source, status.tag) == (left, left)
        assert comm.recv(source=status.Get_source(), tag=status.Get_tag()) == [left] * 3
        assert not comm.Iprobe()
        x = np.full(2, rank)
        request = comm.Isend(x, right)
        message = comm.Mprobe(left)
        y = np.zeros(2, int)
        message.Recv(y)
        assert (y == left).all()
        request.Wait()
        comm.send("o", right)
        assert comm.mprobe().recv() == "o"
    """,
    "request lists": """
        buffers = [np.zeros(1, int) for _ in range(size)]
        requests = [comm.Irecv(b, q, tag=1) for q, b in enumerate(buffers)]
        requests += [comm.Isend(np.full(1, rank), q, tag=1) for q in range(size)]
        done = [MPI.Request.Waitany(requests)]
        some = MPI.Request.Waitsome(requests)
        MPI.Request.Waitall(requests)
        assert [int(b[0]) for b in buffers] == list(range(size))
        assert MPI.Request.Waitany(requests) == MPI.UNDEFINED and MPI.Request.Waitsome(requests) is None
        assert MPI.Request.Testall(requests) and all(r == MPI.REQUEST_NULL for r in requests)
        values = MPI.Request.waitall([comm.irecv(source=left), comm.isend("v", right)])
        assert values == ["v", None]
    """,
    "persistent requests": """
        x, y = np.zeros(1, int), np.zeros(1, int)
        requests = [comm.Send_init(x, right), comm.Recv_init(y, left)]
        for i in range(3):
            x[0] = rank + i
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            assert y[0] == left + i
    """,
    "self": """
        me = MPI.COMM_SELF
        assert (me.rank, me.size) == (0, 1) and me.allreduce(rank) == rank
        request = me.isend(rank, 0)
        assert me.recv(source=0) == rank
        request.wait()
    """,
}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("what", MESSAGES)
def test_messages(run, what, ranks):
    run(MESSAGES[what], ranks)


COLLECTIVES = {
    "bcast": "x = np.full(7, rank); comm.Bcast(x, root=size - 1); assert (x == size - 1).all()",
    "scatter and gather": """
        whole = np.arange(3 * size, dtype='i4') if rank == 0 else None
        part = np.zeros(3, 'i4')
        comm.Scatter(whole, part, root=0)
        assert part.tolist() == [3 * rank, 3 * rank + 1, 3 * rank + 2]
        back = np.zeros(3 * size, 'i4') if rank == size - 1 else None
        comm.Gather(part, back, root=size - 1)
        assert rank != size - 1 or (back == np.arange(3 * size)).all()
        comm.Scatter([whole, 3, MPI.INT] if rank == 0 else None, MPI.IN_PLACE if rank == 0 else part, 0)
    """,
    "scatterv and gatherv": """
        counts = [r + 1 for r in range(size)]
        displs = [sum(counts[:r]) + r for r in range(size)]  # with gaps
        whole = np.arange(sum(counts) + size, dtype='f8') if rank == 0 else None
        part = np.zeros(rank + 1)
        comm.Scatterv([whole, counts, displs, MPI.DOUBLE] if rank == 0 else None, part, root=0)
        assert part.tolist() == [displs[rank] + i for i in range(rank + 1)]
        back = np.full(sum(counts) + size, -1.0)
        comm.Gatherv(part, [back, (counts, displs), MPI.DOUBLE] if rank == 0 else None, root=0)
        assert rank or all(back[d:d + n].tolist() == list(range(d, d + n)) for n, d in zip(counts, displs))
    """,
    "allgather": """
        out = np.zeros((size, 2))
        comm.Allgather(np.full(2, rank, 'f8'), out)
        assert (out == np.arange(size)[:, None]).all()
        out[:] = 0; out[rank] = rank
        comm.Allgather(MPI.IN_PLACE, [out, 2, MPI.DOUBLE])
        assert (out == np.arange(size)[:, None]).all()
        counts = [r + 1 for r in range(size)]
        flat = np.zeros(sum(counts), int)
        comm.Allgatherv(np.full(rank + 1, rank), [flat, counts])
        assert flat.tolist() == [r for r in range(size) for _ in range(r + 1)]
    """,
    "alltoall": """
        x, y = np.arange(size) + 10 * rank, np.zeros(size, int)
        comm.Alltoall(x, y)
        assert y.tolist() == [10 * q + rank for q in range(size)]
        counts = [1 + (rank + q) % 2 for q in range(size)]
        out = np.zeros(sum(counts), int)
        comm.Alltoallv([np.full(sum(counts), rank), counts], [out, counts])
        assert out.tolist() == [q for q, n in enumerate(counts) for _ in range(n)]
    """,
    "reductions": """
        total = np.zeros(3) if rank == 0 else None
        comm.Reduce(np.full(3, rank + 1.0), total, op=MPI.SUM, root=0)
        assert rank or (total == size * (size + 1) / 2).all()
        x = np.array([rank, -rank], 'i4')
        comm.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)
        assert x.tolist() == [size - 1, 0]
        y = np.zeros(1, 'i4')
        for op, expected in ((MPI.LAND, 0), (MPI.LOR, int(size > 1)), (MPI.PROD, 0)):
            comm.Allreduce(np.array([rank], 'i4'), y, op=op)
            assert y[0] == expected, (op, y)
        comm.Allreduce(np.array([1 << rank], 'i4'), y, op=MPI.BOR)
        assert y[0] == (1 << size) - 1
        out = np.zeros(2)
        comm.Reduce_scatter_block(np.arange(2.0 * size), out)
        assert out.tolist() == [size * 2 * rank, size * (2 * rank + 1)]
        counts = [r + 1 for r in range(size)]
        out = np.zeros(rank + 1)
        comm.Reduce_scatter(np.ones(sum(counts)), out, counts)
        assert (out == size).all()
    """,
    "scans": """
        y = np.zeros(1)
        comm.Scan(np.array([rank + 1.0]), y)
        assert y[0] == (rank + 1) * (rank + 2) / 2
        y[0] = -1
        comm.Exscan(np.array([rank + 1.0]), y)
        assert y[0] == (rank * (rank + 1) / 2 if rank else -1)
    """,
    "locations and operations of one's own": """
        pair = np.array([(abs(rank - 1), rank)], dtype=np.dtype([('v', 'f8'), ('i', 'i4')], align=True))
        best = np.zeros_like(pair)
        comm.Allreduce([pair, MPI.DOUBLE_INT], [best, MPI.DOUBLE_INT], op=MPI.MINLOC)
        assert best['i'][0] == (1 if size > 1 else 0)
        def together(a, b, datatype):
            x, y = np.frombuffer(a, 'f8'), np.frombuffer(b, 'f8')
            y[:] = x  # the leftmost: associative, but the order counts
        op = MPI.Op.Create(together)
        y = np.zeros(1)
        comm.Allreduce(np.array([float(rank + 1)]), y, op=op)
        assert y[0] == 1
        assert comm.allreduce((rank, rank), op=MPI.MAXLOC) == (size - 1, size - 1)
    """,
    "objects": """
        assert comm.bcast({"a": rank}, root=size - 1) == {"a": size - 1}
        assert comm.gather(rank, root=0) == (list(range(size)) if rank == 0 else None)
        assert comm.scatter([[q] for q in range(size)] if rank == 0 else None) == [rank]
        assert comm.allgather(str(rank)) == [str(q) for q in range(size)]
        assert comm.alltoall([(rank, q) for q in range(size)]) == [(q, rank) for q in range(size)]
        assert comm.reduce([rank], op=MPI.SUM, root=0) == (list(range(size)) if rank == 0 else None)
        assert comm.allreduce(rank, op=MPI.MAX) == size - 1
        assert comm.scan([rank]) == list(range(rank + 1))
        assert comm.exscan([rank]) == (list(range(rank)) if rank else None)
        comm.barrier()
    """,
    "beside the program": """
        x, y = np.full(4, rank + 1.0), np.zeros(4)
        request = comm.Iallreduce(x, y)
        other = np.full(2, rank)
        second = comm.Ibcast(other, root=0)
        third = comm.Ibarrier()
        if rank == 0:
            comm.send("between", right) if size > 1 else None
        elif rank == 1:
            assert comm.recv(source=0) == "between"
        MPI.Request.Waitall([third, request, second])
        assert (y == size * (size + 1) / 2).all() and (other == 0).all()
        again = comm.Allreduce_init(x, y)
        for i in range(3):
            x[:] = i
            again.Start(); again.Wait()
            assert (y == i * size).all()
    """,
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("what", COLLECTIVES)
def test_collectives(run, what, ranks):
    run(COLLECTIVES[what], ranks)


COMMUNICATORS = {
    "split, dup, create": """
        half = comm.Split(rank % 2, key=-rank)
        assert half.size == len(range(rank % 2, size, 2)) and half.allgather(rank) == sorted(half.allgather(rank))[::-1]
        copy = comm.Dup()
        assert MPI.Comm.Compare(copy, comm) == MPI.CONGRUENT and copy != comm and comm == MPI.COMM_WORLD
        group = comm.Get_group().Incl([0])
        first = comm.Create(group)
        assert (first == MPI.COMM_NULL) == (rank != 0)
        none = comm.Split(MPI.UNDEFINED)
        assert none == MPI.COMM_NULL and not none
        half.Free(); copy.Free()
        assert comm.Split_type(MPI.COMM_TYPE_SHARED).size >= 1
    """,
    "groups": """
        group = comm.group
        assert group.size == size and group.rank == rank
        rest = group.Excl([0])
        assert rest.Translate_ranks([r for r in range(size - 1)], group) == list(range(1, size))
        assert MPI.Group.Union(rest, group).size == size and MPI.Group.Intersection(rest, group).size == size - 1
    """,
    "a ring as a grid": """
        ring = comm.Create_cart([size], periods=[True])
        source, dest = ring.Shift(0, 1)
        assert (source, dest) == (left, right) and ring.Get_coords(rank) == [rank]
        line = comm.Create_cart([size])
        assert line.Shift(0, 1) == (rank - 1 if rank else MPI.PROC_NULL, rank + 1 if rank < size - 1 else MPI.PROC_NULL)
        dims = MPI.Compute_dims(size, 2)
        grid = comm.Create_cart(dims, periods=[False, True], reorder=True)
        assert grid.Get_cart_rank(grid.coords) == rank and grid.Get_topo()[0] == dims
        row = grid.Sub([False, True])
        assert row.size == dims[1] and row.rank == grid.coords[1]
    """,
    "mine": """
        class Mine(MPI.Intracomm):
            def total(self):
                return self.allreduce(1)
        assert Mine(MPI.COMM_WORLD).total() == size and Mine(comm.Dup()).total() == size
    """,
}


@pytest.mark.parametrize("ranks", [1, 2, 4, 6])
@pytest.mark.parametrize("what", COMMUNICATORS)
def test_communicators(run, what, ranks):
    run(COMMUNICATORS[what], ranks)


def test_the_module_tells_of_itself(run):
    run("""
        assert MPI.Is_initialized() and not MPI.Is_finalized()
        assert MPI.Get_processor_name() and MPI.Get_version()[0] >= 3 and MPI.Wtick() > 0
        assert comm.Get_attr(MPI.TAG_UB) >= 32767 and comm.Get_name() == "MPI_COMM_WORLD"
        import mpi4py, mpi4py.rc
        assert mpi4py.MPI is MPI
        import sys
        assert sys.argv[1:] == ["one", "two"] and __name__ == "__main__"
        MPI.Finalize()
        assert MPI.Is_finalized()
    """)


def test_the_time_is_emulated_and_grows_with_communication(run):
    out, trace = run("""
        x = np.zeros(10**6)
        comm.Barrier()
        began = MPI.Wtime()
        comm.Bcast(x)
        comm.Barrier()
        if rank == 0: print(MPI.Wtime() - began)
    """)
    assert 0.8e-3 < float(out) < 3e-3  # 8 MB at 10 GB/s
    assert "order" in trace.header["marks"]


def test_masters_serve_workers_in_emulated_order(run):
    text = """
        if rank == 0:
            status = MPI.Status()
            order = []
            for _ in range(2 * (size - 1)):
                comm.recv(source=MPI.ANY_SOURCE, status=status)
                order.append(status.source)
            print(order)
        else:
            for i in range(2):
                comm.sendrecv(np.zeros(100_000 * (size - rank)), rank, source=rank)
                comm.recv(source=rank - 1, tag=1) if rank > 1 and i == 0 else None
                comm.send(None, 0)
                comm.send(None, rank + 1, tag=1) if rank + 1 < size and i == 0 else None
        """
    out, _ = run(text, 4)
    assert out.startswith("[1, ") and sorted(out) == sorted("[1, 1, 2, 2, 3, 3]\n")
    assert run(text, 4)[0] == out


def test_ranks_have_modules_of_their_own(run, tmp_path):
    (tmp_path / "helper.py").write_text("from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\n")
    run("""
        import helper
        comm.Barrier()
        assert helper.rank == rank
        import helper as again
        assert again is helper
    """)


def test_overlap_with_a_collective_beside_the_program_is_timed(run):
    from emu.program import replay

    def end_s(text):
        _, trace = run(text, 2)
        return float(replay(trace, link_cluster("latency=1 us, bandwidth=80 Gb/s", 2)).end_s)

    beside = end_s("""
        x, y, z = np.zeros(10**6), np.zeros(10**6), np.zeros(10**6)
        request = comm.Ibcast(x, root=0)
        comm.Bcast(y, root=1)
        request.Wait()
    """)
    after = end_s("""
        x, y = np.zeros(10**6), np.zeros(10**6)
        comm.Bcast(x, root=0)
        comm.Bcast(y, root=1)
    """)
    assert beside < 0.7 * after


UNSUPPORTED = {
    "MPI.Win": "MPI.Win.Allocate(8)",
    "MPI.File": "MPI.File.Open(comm, 'x')",
    "Intracomm.Spawn": "comm.Dup().Spawn('x')",
    "Request.Cancel": "comm.Irecv(np.zeros(1), rank).Cancel()",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_says_so_by_name(run, name):
    with pytest.raises(ConfigError, match=f"{name.split('.')[-1]}.*not supported by emu"):
        run(UNSUPPORTED[name], 1)


def test_asking_for_what_is_not_supported_is_possible(run):
    run("assert not hasattr(MPI, 'Win') and not hasattr(comm, 'Spawn')", 1)


@pytest.mark.parametrize(
    "text, error, words",
    [
        ("comm.Send(np.zeros((4, 4))[:, 0], rank)", ConfigError, "a contiguous array is expected"),
        ("comm.Send(np.zeros(1), size)", ConfigError, "a rank from 0 to 2"),
        ("comm.Send(np.zeros(1), right, tag=-5)", ConfigError, "a tag from 0"),
        ("comm.Bcast(np.zeros(1), root=7)", ConfigError, "a root from 0 to 2"),
        ("comm.Send({'a': 1}, right)", ConfigError, "a buffer such as a numpy array"),
        ("comm.Send(np.array([None]), right)", ConfigError, "lower-case"),
        ("comm.Allgather(np.zeros(2), np.zeros(5))", ConfigError, "a multiple of 3 items"),
        ("comm.Allreduce(np.zeros(2), np.zeros(2, 'f4'))", ConfigError, "one dtype"),
        ("comm.Allreduce(np.zeros(2), np.zeros(2), op=MPI.BAND)", ConfigError, "integers are expected"),
        ("comm.Send([np.zeros(3, 'f4'), MPI.DOUBLE], right)", ConfigError, "a whole number of DOUBLE"),
        ("comm.scatter([1, 2])", ConfigError, "a sequence of 3 objects"),
        ("comm.Recv(np.zeros(1), left)", DeadlockError, "rank 0 at script.py:7 waits for a message from rank 2"),
        ("comm.bcast(1, root=rank)", MismatchError, "rank 0: object_broadcast.* rank 1: object_broadcast"),
        ("comm.Bcast(np.zeros(1)) if rank else comm.Barrier()", MismatchError, "broadcast"),
        (
            "comm.Send(np.zeros(2, 'f4'), right)\ncomm.Recv(np.zeros(1), left)",
            MismatchError,
            "8 bytes of float32 at script.py:7.*8 bytes of float64 at script.py:8",
        ),
        ("comm.send(1, right)\ncomm.Recv(np.zeros(100), left)", MismatchError, "a pickled object at script.py:7"),
    ],
)
def test_mistakes_are_told(run, text, error, words):
    with pytest.raises(error, match=words):
        run(text)


def test_measured_computation_is_costed_and_marked(run):
    _, trace = run(
        """
        for _ in range(3):
            sum(i * i for i in range(20_000))
            comm.Barrier()
        """,
        2,
        speedup=10.0,
    )
    rows = trace.ranks[0]
    assert (rows["x"][rows["op"] == 2] > 0).sum() >= 3  # ELAPSED
    assert trace.header["marks"]["compute"] == "measured, speedup 10"


def test_names_and_comparisons_are_those_of_mpi4py(run):
    run("""
        assert MPI.UNSIGNED_INT.Get_size() == 4 and MPI.FLOAT64_T.Get_size() == 8 and MPI.F_COMPLEX.Get_size() == 8
        assert (MPI.REPLACE(1, 2), MPI.NO_OP(1, 2)) == (2, 1)
        assert comm.Get_parent() == MPI.Comm.Get_parent() == MPI.COMM_NULL
        assert comm.topology == MPI.UNDEFINED and not comm.is_topo
        copy, request = comm.Idup()
        request.Wait()
        assert comm.Compare(copy) == MPI.Comm.Compare(comm, copy) == MPI.CONGRUENT
        group = comm.Get_group()
        assert group.Compare(group.Dup()) == MPI.Group.Compare(group, group) == MPI.IDENT
        grid = comm.Create_cart([comm.size])
        assert grid.is_topo and grid.topology == MPI.CART
        assert MPI.Exception().Get_error_class() == MPI.ERR_OTHER
    """)
