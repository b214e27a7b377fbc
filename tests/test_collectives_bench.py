"""The benchmark of collectives beside the MPI library's own: its rows and what it checks."""

from bench import collectives


def test_a_job_tells_a_row_for_each_size_and_algorithm():
    rows = collectives.job(2, [4096, 8192], ["ring", "recursive_doubling"], ["gpu", "numpy"], 1)
    assert [(row["p"], row["bytes"], row["memory"], row["algorithm"]) for row in rows] == [
        (2, nbytes, memory, algorithm)
        for nbytes in (4096, 8192)
        for memory in ("gpu", "numpy")
        for algorithm in ("ring", "recursive_doubling")
    ]
    for row in rows:
        assert row["ratio"] == row["wall_s"] / row["native_wall_s"] > 0 and row["recorded_wall_s"] > 0
        assert row["of_limit"] == row["limit_wall_s"] / row["wall_s"] > 0


def test_the_best_algorithm_of_a_size_is_held_against_its_bound(monkeypatch):
    def job(p, sizes, algorithms, memories, rounds):
        walls = {"ring": 2.0, "tree": 0.5}
        return [
            {"p": p, "bytes": n, "memory": m, "algorithm": a, "wall_s": walls[a], "ratio": walls[a], "gloo_ratio": None}
            for n in sizes
            for m in memories
            for a in algorithms
        ]

    monkeypatch.setattr(collectives, "job", job)
    checks = collectives.measure_collectives("2", "4096,1000000", "ring,tree", "numpy", 1)["checks"]
    assert checks == {
        "p=2, 4096 bytes of numpy memory: ratio at most 3.0 (tree: 0.50)": True,
        "p=2, 1000000 bytes of numpy memory: ratio at most 1.0 (tree: 0.50)": True,
    }
