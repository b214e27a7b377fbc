"""`emu show`: the catalogue with its sources, and clusters as drawings."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from emu.catalog import builtin
from emu.cli.main import emu
from emu.cluster import load_cluster
from emu.errors import ConfigError
from emu.nn.catalogue import names
from emu.report.drawing import draw_cluster


def call(*arguments):
    result = CliRunner().invoke(emu, ("show", *arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_without_a_name_every_entry_is_listed():
    listed = {kind: builtin().names(kind) for kind in builtin().tables}
    assert json.loads(call("--json")) == {**listed, "models": names()}
    assert "dgx-a100" in call()


@pytest.mark.parametrize("kind", list(builtin().tables))
def test_each_kind_is_listed_with_its_sources(kind):
    text = call(kind)
    assert all(name in text for name in builtin().names(kind))
    listed = json.loads(call(kind, "--json"))[kind]
    assert list(listed) == builtin().names(kind)
    assert all(
        set(figure) == {"text", "source", "from_memory"} for e in listed.values() for figure in e["figures"].values()
    )


def test_a_gpu_is_shown_with_the_source_of_each_figure():
    text = call("a100")
    assert "gpus: a100-sxm4-40 (also a100" in text
    assert "312 TFLOPS   lightning" in text
    assert "https://github.com/Lightning-AI/pytorch-lightning" in text


def test_a_cluster_is_drawn():
    assert call("dgx-a100:2").startswith(draw_cluster(load_cluster("dgx-a100:2")).rstrip())


def test_a_name_that_several_kinds_have_shows_all():
    text = call("nvlink3")
    assert "links: nvlink3" in text and "nodes: nvlink3" in text and "clusters: nvlink3" in text


def test_a_link_string_and_a_file_are_drawn(tmp_path):
    assert "GPUs" in call("--link", "latency=5 us, bandwidth=12 Gb/s")
    path = tmp_path / "mine.toml"
    path.write_text('[cluster]\nname = "mine"\nnode = "dgx-a100"\nnodes = 2\n')
    assert call(str(path)).startswith("mine: 2 nodes, 16 GPUs")


def test_settings_change_what_is_drawn():
    assert "port 50 Gb/s" in call("dgx-a100:2", "--set", "nic.bandwidth=50 Gb/s")


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'dgx-a100'"):
        call("dgx-a10")


def test_two_names_are_refused():
    with pytest.raises(ConfigError, match="one thing is expected"):
        call("gpus", "--cluster", "dgx-a100")


def test_models_are_listed_with_their_parameters_and_sources():
    found = json.loads(call("models", "--json"))["models"]
    assert list(found) == names()
    assert found["gpt2-small"]["parameters"] == 124_439_808
    assert "124,439,808" in call("models") and "Language Models are Unsupervised" in call("models")


def test_a_model_is_shown_layer_by_layer():
    found = json.loads(call("gpt2-small", "--json"))["models"]["gpt2-small"]
    assert sum(layer["parameters"] for layer in found["layers"]) == found["parameters"]
    assert "gpt, 124,439,808 parameters" in call("gpt2-small")
