"""What a timeline looks like from outside: tables, JSON, Perfetto traces and plots."""

from __future__ import annotations

import json
from collections import defaultdict
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hand_timelines import RING, FourGpus, RankLog, timeline

from emu.errors import ConfigError
from emu.program import run
from emu.report.html import html_page, write_html
from emu.report.perfetto import perfetto, write_perfetto
from emu.report.plots import write_line_plot, write_step_plot
from emu.report.summary import summary, write_json
from emu.report.tables import grid, link_table, path_table, render, step_table


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setattr(FourGpus, "name", "four", raising=False)
    monkeypatch.setattr(FourGpus, "sha256", "0" * 64, raising=False)


def training(ranks=2, steps=3, with_flows=True):
    """Steps of 10 s: 4 s of kernels, then an all-reduce on the communication stream."""
    logs, flows = [], []
    for rank in range(ranks):
        log = RankLog(rank)
        for step in range(steps):
            at = 10.0 * step
            log.begin(at, index=step).kernel(at, at + 4, launch=1).record()
            log.wait_event(at, at + 4, stream=1).call(at + 4, at + 9, stream=1).record(stream=1)
            log.wait_event(at + 4, at + 9).kernel(at + 9, at + 10).end(at + 10)
            if with_flows:
                flows.append((rank, rank ^ 1, 0, 50, 1, RING, at + 4, at + 4, at + 9, at + 9))
        logs.append(log)
    routes = (SimpleNamespace(links=(0,)),)
    return timeline(*logs, flows=flows, routes=routes)


def slices(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_perfetto_has_a_row_a_gpu_and_stream_and_one_a_busy_link():
    trace = perfetto(training())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert processes == {0: "GPU 0", 1: "GPU 1", 2: "links"}
    assert names == {(0, 0): "default", (0, 1): "comm", (1, 0): "default", (1, 1): "comm", (2, 0): "nvlink"}
    assert {(e["pid"], e["tid"]) for e in slices(trace)} == set(names)
    assert trace["otherData"]["left_out"] == "nothing"


def test_perfetto_counts_windows_and_queues_of_tcp():
    def program(gpu):
        x = gpu.empty(100_000)
        gpu.comm.waitall([gpu.comm.irecv(x, 0)]) if gpu.rank else gpu.comm.waitall([gpu.comm.isend(x, 1)])

    settings = {"switch.buffer": "64 kB"}
    found = run(program, "tcp-1g", 2, way="local", profile="mpi", **settings).timeline
    counted = [event for event in perfetto(found)["traceEvents"] if event["ph"] == "C"]
    assert {event["name"].split()[0] for event in counted} == {"queue", "window"}
    sizes = [event["args"]["cwnd"] for event in counted if event["name"] == "window 0 to 1"]
    assert sizes == found.tcp_windows()[0, 1]["cwnd_bytes"].tolist()


def test_perfetto_names_spans_and_counts_in_microseconds():
    found = {(e["name"], e["ts"], e["dur"]) for e in slices(perfetto(training())) if e["pid"] == 0}
    assert {
        ("step 1", 10e6, 10e6),
        ("forward", 10e6, 4e6),
        ("all_reduce", 14e6, 5e6),
        ("wait", 14e6, 5e6),
    } <= found


def test_perfetto_slices_of_a_row_nest():
    rows = defaultdict(list)
    for event in slices(perfetto(training(ranks=4))):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        open_until = []
        for start, end in sorted(row, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_messages_of_one_kind_that_share_a_link_are_one_slice():
    (first, *_) = [e for e in slices(perfetto(training())) if e["cat"] == "link"]
    assert first["args"] == {"messages": 2, "bytes": 100}
    assert (first["name"], first["ts"], first["dur"]) == ("all_reduce", 4e6, 5e6)


@pytest.mark.parametrize(
    ("most", "left_out"),
    [
        (24, "12 of 36 spans: what starts after 20 s (1 of 3 steps)"),
        (12, "24 of 36 spans: what starts after 10 s (2 of 3 steps)"),
        (6, "30 of 36 spans: what starts after 10 s (2 of 3 steps), GPUs 1 to 1"),
    ],
)
def test_perfetto_is_capped_and_says_what_was_left_out(most, left_out):
    trace = perfetto(training(with_flows=False), most_events=most)
    assert trace["otherData"]["left_out"] == left_out
    assert len(slices(trace)) <= most
    assert any(left_out in event["name"] for event in trace["traceEvents"])


@pytest.mark.parametrize(("most", "links"), [(12, ["nvlink"]), (24, ["nvlink", "nic"])])
def test_perfetto_shows_the_links_that_carried_most(most, links):
    routes = (SimpleNamespace(links=(0, 1)), SimpleNamespace(links=(0,)))
    flows = [(0, 1, i % 2, 10, 0, RING, t, t, t + 0.5, t + 0.5) for i, t in enumerate((0.0, 1.0, 2.0))]
    trace = perfetto(timeline(RankLog(0).kernel(0, 3), RankLog(1), flows=flows, routes=routes), most_events=most)
    named = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {named[e["tid"]] for e in slices(trace) if e["cat"] == "link"} == set(links)
    left = "1 of 2 links, those that carried least" if len(links) == 1 else "nothing"
    assert trace["otherData"]["left_out"] == left


def test_a_perfetto_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "timeline.json"
    write_perfetto(training(), target)
    assert json.loads(target.read_text()) == perfetto(training())
    assert [p.name for p in tmp_path.iterdir()] == ["timeline.json"]
    with pytest.raises(ConfigError, match="missing"):
        write_perfetto(training(), tmp_path / "missing" / "timeline.json")


def test_the_summary_is_json_and_its_steps_sum(tmp_path):
    found = summary(training())
    write_json(found, tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text()) == found
    for step in [found["step"], *found["steps"], *found["ranks"]]:
        parts = [v for k, v in step.items() if k.endswith("_s") and k not in ("time_s", "start_s", "end_s")]
        assert sum(parts) == step["time_s"] == 10.0
    assert found["step"]["exposed_communication_s"] == 5.0
    assert found["bytes_sent_per_gpu"] == [300, 300]
    assert found["links"][0]["bytes"] == 300
    assert sum(row["time_s"] for row in found["critical_path"]) == found["end_s"] == 30.0
    assert found["overlap_fraction"] == 0.0


def test_tables_show_the_step_the_links_and_the_critical_path():
    made = training()
    text = render(step_table(made), link_table(made), path_table(made))
    assert "exposed communication: nvlink 5 s" in text
    cells = [line.split() for line in text.splitlines()]
    for rank in ("0", "1", "all"):
        assert f"{rank} 10 s 4 s 1 s 5 s -".split() in cells
    assert "nvlink nvlink 100 B/s 300 B 10.0% 15 s".split() in cells
    assert "communication all_reduce" in text


def test_table_cells_are_no_markup():
    assert "[bold]x" in render(grid(None, ["a"], [["[bold]x"]]))


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_plots_are_drawn_in_the_format_of_their_name(tmp_path, name, magic):
    write_step_plot([("rank 0", training().step)], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(magic)
    write_line_plot({"tcp": ([1.0, 2.0], [2.0, 1.0])}, tmp_path / name, "bandwidth", "step (s)")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_the_same_plot_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        write_line_plot({"tcp": ([1.0, 2.0], [2.0, 1.0])}, tmp_path / name, "bandwidth", "step (s)")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_an_unknown_plot_format_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in .png, .svg, .pdf, got '.gif'"):
        write_step_plot([], tmp_path / "a.gif")


class Page(HTMLParser):
    """Collects the cells of tables, and checks that what opens is closed."""

    def __init__(self):
        super().__init__()
        self.cells, self.open = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_page_is_whole_and_shows_the_step_the_path_and_the_links():
    text = html_page(training(), "a <run>")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.cells[:6] == ["0", "10 s", "4 s", "1 s", "5 s", "-"]
    assert {"communication all_reduce", "nvlink", "300 B"} <= set(page.cells)
    assert "a &lt;run&gt;" in text and "http" not in text
    assert text.count("<svg") == 1 and text.count('class="row"') == 2 + 1 + 3


def test_the_page_of_an_empty_run_is_whole():
    page = Page()
    page.feed(html_page(timeline(RankLog(0), RankLog(1)), "nothing"))
    assert page.open == []


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    write_html(training(), tmp_path / "report.html", "run")
    assert (tmp_path / "report.html").read_text() == html_page(training(), "run")
    with pytest.raises(ConfigError, match="missing"):
        write_html(training(), tmp_path / "missing" / "report.html", "run")
