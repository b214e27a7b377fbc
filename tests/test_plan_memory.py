"""Memory by ZeRO stage is the paper's; what does not fit says what to change."""

import json

import pytest
from click.testing import CliRunner

from emu.cli.plan import plan
from emu.cluster import load_cluster
from emu.errors import ConfigError, DeviceOutOfMemory
from emu.parallel.training import Plan, train
from emu.plan.memory import fewest, state
from emu.program import run_here

PAPER = [  # billions of parameters, GPUs, GB a GPU without sharing and for stages 1, 2, 3
    (7.5, 1, 120, 120, 120, 120), (7.5, 4, 120, 52.5, 41.25, 30), (7.5, 16, 120, 35.625, 21.5625, 7.5),
    (7.5, 64, 120, 31.40625, 16.640625, 1.875), (128, 16, 2048, 608, 368, 128), (128, 1024, 2048, 513.5, 257.75, 2),
    (1000, 64, 16000, 4187.5, 2218.75, 250), (1000, 1024, 16000, 4011.71875, 2013.671875, 15.625),
]  # fmt: skip


@pytest.mark.parametrize("row", PAPER)
def test_states_are_those_of_the_paper(row):
    billions, gpus, *expected = row
    found = [state(int(billions * 1e9), gpus, stage).total / 1e9 for stage in range(4)]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("capacity", [16e9, 80e9, 700e9, 4000e9])
def test_the_fewest_gpus_fit_and_one_less_does_not(stage, capacity):
    size = 10**11
    count = fewest(size, stage, capacity)
    if count is None:
        assert state(size, 1 << 50, stage).total >= capacity
    else:
        assert state(size, count, stage).total <= capacity
        assert count == 1 or state(size, count - 1, stage).total > capacity


def test_the_command_explains_the_quoted_figures():
    done = CliRunner().invoke(plan, ["memory", "--model", "gpt3-175b", "--gpu", "a100-80gb", "--gpus", "64"])
    for text in ("ZeRO 3: fits from 35 GPUs on (5 hosts)", "349.2 GB", "at least 800 GB", "2.794 TB"):
        assert text in done.output
    done = CliRunner().invoke(plan, ["memory", "--model", "gpt2", "--json"])
    assert json.loads(done.output)["fewest_gpus"] == {"0": 1, "1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize(("change", "text"), [
    ({"--gpus": "8,x"}, "--gpus: numbers"), ({"--gpu": "a1000"}, "a1000"), ({"--precision": "fp4"}, "--precision"),
])  # fmt: skip
def test_bad_input_is_named(change, text):
    words = [word for pair in ({"--model": "gpt2"} | change).items() for word in pair]
    with pytest.raises(ConfigError, match=text):
        CliRunner().invoke(plan, ["memory", *words], catch_exceptions=False)


def test_out_of_memory_says_what_to_change_and_what_that_saves():
    cluster = load_cluster("dgx-a100", {}, 8)
    with pytest.raises(DeviceOutOfMemory) as refused:
        run_here(lambda gpu: train(gpu, Plan(model="gpt3-13b", batch=8, dtype="bfloat16")), cluster, 8, dry=True)
    assert "--strategy zero3 saves 3" in str(refused.value) and "saves" in str(refused.value)


def test_a_model_that_is_recomputed_fits_where_it_did_not():
    def peak(**change):
        plan = Plan(model="gpt2-xl", strategy="zero3", batch=16, dtype="bfloat16", steps=1, **change)
        cluster = load_cluster("dgx-a100", {}, 8)
        return run_here(lambda gpu: train(gpu, plan), cluster, 8, dry=True)[2][0].peak_bytes

    assert peak(recompute=True) < 0.6 * peak()
