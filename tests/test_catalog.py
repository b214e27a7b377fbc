import pytest

from emu.catalog import builtin, entries, read
from emu.catalog.schema import KINDS
from emu.cluster import load_cluster
from emu.errors import ConfigError

FIGURES = {
    "gpus": ("memory", "memory_bandwidth", "fp32", "power"),
    "cpus": ("cores", "lanes", "memory_bandwidth"),
    "links": ("bandwidth",),
    "transports": ("latency",),
    "switches": ("latency",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_of_the_catalogue_reads(kind):
    assert len(entries(kind)) >= 7


@pytest.mark.parametrize(("kind", "keys"), FIGURES.items())
def test_every_figure_names_its_source(kind, keys):
    for entry in entries(kind):
        for key in keys:
            assert entry.figures[key].source, f"{entry.where} {key}"


def test_every_source_is_known_or_says_it_in_words():
    sources = builtin().sources
    for kind in ("gpus", "cpus", "links", "transports", "switches"):
        for entry in entries(kind):
            for key, figure in entry.figures.items():
                word = figure.source.split(":")[0].split(",")[0]
                assert not figure.source or word in sources or len(word.split()) > 1 or word.endswith("'s"), (
                    f"{entry.where} {key}: {figure.source}"
                )


def test_what_is_from_memory_is_marked():
    gpu = builtin().entry("gpus", "a100-80gb")
    assert gpu.figures["fp64"].from_memory
    assert not gpu.figures["fp32"].from_memory
    for entry in entries("gpus"):
        for figure in entry.figures.values():
            assert figure.from_memory == figure.source.startswith("memory")


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [
        ("v100", "float16", 125),
        ("a100", "tf32", 156),
        ("a100", "bfloat16", 312),
        ("h100", "float8", 1979),
        ("p100", "float64", 5.3),
    ],
)
def test_peaks(gpu, dtype, tflops):
    cluster = load_cluster("nvlink3", {"gpu": gpu})
    assert cluster.gpu(0).peak(dtype) == pytest.approx(tflops * 1e12)


def test_a_gpu_without_tensor_cores_runs_new_dtypes_as_fp32():
    gpu = load_cluster("nvlink3", {"gpu": "p100"}).gpu(0)
    assert gpu.peak("tf32") == gpu.peak("bfloat16") == gpu.peak("int64") == gpu.peak("float32") == 10.6e12


def test_an_unknown_dtype_is_an_error():
    with pytest.raises(ConfigError, match="unknown dtype 'float33'"):
        load_cluster("nvlink3").gpu(0).peak("float33")


def test_an_alias_and_its_name_are_one_entry():
    assert builtin().entry("gpus", "a100") == builtin().entry("gpus", "a100-sxm4-40")


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(ConfigError, match="unknown gpu 'a100-80'; did you mean .*'a100-80gb'"):
        builtin().entry("gpus", "a100-80")


def test_an_unknown_kind_lists_what_there_is():
    with pytest.raises(ConfigError, match="unknown kind 'gpu'; did you mean .*'gpus'"):
        entries("gpu")


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_file_overrides_one_figure_and_is_its_source(tmp_path):
    path = write(tmp_path, '[gpus.a100]\nmemory = "100 GB"\n')
    catalog, cluster = read(path)
    entry = catalog.entry("gpus", "a100-sxm4-40")
    assert cluster is None
    assert entry.values["memory"] == 100e9
    assert entry.values["fp32"] == 19.5e12
    assert entry.figures["memory"].source == path
    assert entry.figures["fp32"].source == "lightning"
    assert builtin().entry("gpus", "a100").values["memory"] == 40e9


def test_a_file_defines_on_a_base(tmp_path):
    catalog, _ = read(write(tmp_path, '[gpus.mine]\nbase = "h100-sxm5-80"\nmemory = "96 GB"\n'))
    entry = catalog.entry("gpus", "mine")
    assert (entry.values["memory"], entry.values["fp16"], entry.aliases) == (96e9, 989e12, ())


def test_tables_within_tables_are_overridden_key_by_key(tmp_path):
    text = '[nodes.mine]\nbase = "dgx-a100"\n[nodes.mine.nic]\nlink = "ib-edr"\n'
    catalog, _ = read(write(tmp_path, text))
    assert catalog.entry("nodes", "mine").values["nic"] == {"link": "ib-edr", "count": 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[links.nic]\nbandwith = "1 GB/s"\n', "[links.nic]: unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ('[link.nic]\nbandwidth = "1 GB/s"\n', "unknown table 'link'; did you mean 'links'?"),
        ('[links.nic]\nmedium = "ethernet"\nbandwidth = "12"\n', "[links.nic] bandwidth: has no unit"),
        ('[links.nic]\nmedium = "ethernet"\nbandwidth = 12\n', "[links.nic] bandwidth: must be a bandwidth"),
        ('[links.nic]\nmedium = "ethernet"\nbandwidth = "-1 GB/s"\n', "must not be negative"),
        ('[links.nic]\nmedium = "ether"\n', "[links.nic] medium: must be one of pcie, nvlink"),
        (
            '[links.nic]\nbandwidth = { value = "1 GB/s", sauce = "me" }\n',
            "unknown key 'sauce'; did you mean 'source'",
        ),
        ('[gpus.mine]\nbase = "h100-sxm5"\n', "unknown base 'h100-sxm5'; did you mean 'h100-sxm5-80'"),
        ('[gpus.a]\nbase = "b"\n[gpus.b]\nbase = "a"\n', "bases form a circle"),
        ("[gpus]\nmine = 3\n", "must hold tables such as [gpus.mine]"),
        ("[nodes.mine.pcie]\npier = 'all'\n", "[nodes.mine.pcie]: unknown key 'pier'; did you mean 'peer'?"),
        ("[nodes.mine]\npcie = 3\n", "[nodes.mine.pcie]: must be a table, got 3"),
        ("[nodes.mine.pcie]\nswitches = 3\n", "must be a list of tables"),
        ("[nodes.mine.pcie]\nswitches = [{nome = 'x'}]\n", "[nodes.mine.pcie.switches[0]]: unknown key 'nome'"),
        ("[nodes.mine]\nsockets = 0\n", "[nodes.mine] sockets: must be a whole number of at least 1"),
        ("[cluster]\nnod = 'dgx-1'\n", "[cluster]: unknown key 'nod'; did you mean 'node'"),
        ("[transports.x]\nkind = 'tcp'\noffload = 'maybe'\n", "offload: must be true or false"),
        ("[gpus.mine\n", "must be TOML"),
    ],
)
def test_each_fault_in_a_file_names_file_table_and_key(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read(path)
    assert str(error.value).startswith(path)
    assert words in str(error.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "none.toml")


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(path)
