"""What the command line says to a word it does not know: one line that names the nearest, exit status 2."""

import pytest


@pytest.fixture
def emu(run_job, tmp_path):
    """Run `emu` with some words, in an empty directory: on ranks, or without mpirun."""

    def run(*words, ranks=None, mpi="openmpi"):
        return run_job(["emu", *map(str, words)], ranks, mpi, cwd=tmp_path)

    return run


def refused(ended, *said):
    """The message is one line that holds these words; exit status 2."""
    message = [line for line in ended.output.splitlines() if line.lstrip("\0 ").startswith("emu: ")]
    assert len(message) == 1, ended.output
    for word in said:
        assert word in message[0]
    assert "Traceback" not in ended.output and "Usage:" not in ended.output
    assert ended.returncode == 2
    return True


@pytest.mark.parametrize(
    "words, said",
    [
        (["trian"], ["'trian'", "'train'"]),
        (["plan", "memroy"], ["'memroy'", "'memory'"]),
        (["plan", "--model", "X"], ["emu plan memory --model"]),
        (["run", "--locl", 4, "mp.py"], ["'--locl'", "'--local'"]),
        (["train", "--step", 3], ["'--step'", "'--steps'"]),
        (["bench", "allreduce"], ["'allreduce'", "'all_reduce'"]),
        (["train", "--local", "four"], ["--local: a whole number of at least 1 is expected, got 'four'"]),
        (["train", "--local"], ["--local: a value is expected"]),
        (["run"], ["SCRIPT is expected"]),
        (["train", "more"], ["'more'"]),
    ],
)
def test_a_misspelt_word_is_answered_in_one_line_with_the_nearest(emu, words, said):
    assert refused(emu(*words), *said)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize(
    "words", [["train", "--clock", "wal"], ["train", "--steps", "0"], ["bench", "all_reduce", "-o", "suum"]]
)
def test_ranks_that_all_meet_an_error_tell_it_once(emu, mpi, words):
    assert refused(emu(*words, ranks=4, mpi=mpi), words[-2], words[-1])


def test_a_group_of_commands_alone_shows_its_help(emu):
    ended = emu("plan")
    assert "memory" in ended.output and "Usage:" in ended.output


def test_a_script_needs_a_number_of_ranks(emu, tmp_path):
    (tmp_path / "mp.py").write_text("print('ran')\n")
    ended = emu("run", "mp.py")
    assert refused(ended, "mpirun -n 4 emu run mp.py", "emu run --local 4 mp.py")
    assert "ran\n" not in ended.output
