"""What the command line says to a word it does not know: one line that names the nearest, exit status 2."""

import pytest
from jobs import refused


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


LINK = "latency=5 us bandwidth=12 Gb/s"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--profile", "ncll"], ["--profile", "'ncll'", "did you mean 'nccl'"]),
        (["--dtype", "fp23"], ["--dtype", "'fp23'", "'fp32'"]),
        (["--bucket", "0"], ["--bucket: at least 1 byte is expected, got '0'"]),
        (["--link", LINK], ["separated by commas"]),
        (["--set", "foo=1"], ["'foo'", "emu show settings"]),
        (["--set", "bandwith=1"], ["'bandwith'", "'nic.bandwidth'", "emu show settings"]),
    ],
)
def test_a_value_that_does_not_hold_is_answered_with_what_does(emu, words, said):
    ended = emu("train", "--local", 2, *words)
    assert refused(ended, *said)
    assert len(ended.output) < 400


def test_a_deadline_without_unit_is_answered_with_a_likely_one(emu, tmp_path):
    (tmp_path / "mp.py").write_text("")
    assert refused(emu("run", "--local", 2, "--deadline", 5, "mp.py"), "--deadline", "'30 s'")


@pytest.mark.parametrize(
    "data, said", [(b"", "an empty file"), (b"text\n" * 9, "not an emu trace"), (b"PK\3\4" * 9, "cut off")]
)
def test_a_file_that_is_no_trace_is_told_in_words(emu, tmp_path, data, said):
    (tmp_path / "bad.emu").write_bytes(data)
    ended = emu("replay", "bad.emu")
    assert refused(ended, "bad.emu", said)
    assert "BadZipFile" not in ended.output


@pytest.mark.parametrize("name", ["dry", "local", "mpi"])
def test_a_way_given_as_a_setting_is_answered_with_way(name):
    from emu import run
    from emu.errors import ConfigError

    with pytest.raises(ConfigError, match=f"way='{name}'"):
        run(print, "pcie4", ranks=2, **{name: True})


def test_show_knows_the_other_names_of_models(emu):
    assert "gpt2-small" in emu("show", "gpt2").output


def test_show_cuts_nothing_where_a_program_reads(emu):
    ended = emu("show", "dgx-a100")
    assert ended.returncode == 0 and "…" not in ended.output


@pytest.mark.parametrize("count, told", [(1, "1 step"), (0, "0 steps"), (2, "2 steps")])
def test_one_thing_is_singular(count, told):
    from emu.units import counted

    assert counted(count, "step") == told


def test_verify_tells_what_a_submission_may_use(emu):
    told = emu("verify", "--help").output
    for call in ("isend(x, to)", "irecv(x, source)", "sendrecv(x, to, into, source)", "reduce(op, into, received)"):
        assert call in told
