"""Tables and plots come from the result files, and only from them."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import report
from bench.bars import Group, bars
from bench.pictures import pictures
from bench.plot import Axis, Series, plot
from engine.bench.rows import Report, Row

SVG = "http://www.w3.org/2000/svg"


def row(bench: str, metric: str, value: float, **given: object) -> Row:
    facts = {
        "model": "llama-3.1-8b", "format": "awq", "rank": 16, "batch": 8, "adapters": 0,
        "context": 512, "unit": "ms",
    } | given  # fmt: skip
    return Row(bench=bench, metric=metric, value=value, **facts)  # type: ignore[arg-type]


DECODE = [
    row(
        "decode",
        metric,
        value,
        batch=batch,
        adapters=adapters,
        peer="other 1.2",
        peer_value=8.0,
        floor=2.0,
    )
    for batch, adapters in ((1, 0), (64, 0), (64, 64))
    for metric, value in (("step", 4.0), ("step median", 3.9), ("step P99", 4.5))
]
LINEAR = [
    row("linear", "time", 10.0 * batch, op=op, batch=batch, unit="us")
    for op in ("qkv_proj", "o_proj") for batch in (1, 64)
]  # fmt: skip
SERVE = [row("serve", "requests", 3.0, op="closed", batch=0, unit="requests/s")]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, rows in (("decode", DECODE), ("linear", LINEAR), ("serve", SERVE)):
        Report("NVIDIA H200", rows, [name]).write(tmp_path / "results", name, {})
    return tmp_path / "results"


def test_a_decode_step_is_one_line_with_its_peer_and_its_floor(results: Path):
    tables = report.render(results)
    assert "| 64 | 64 | 4 | 4.5 | 8 (other 1.2) | 0.50 | 2 | 2.00 |" in tables
    assert tables.count("(other 1.2)") == 3
    assert "loratorio bench decode" in tables
    assert "linear qkv_proj llama-3.1-8b awq, batch 64: time | 640 | us" in tables
    assert "| serve closed llama-3.1-8b awq: requests | 3 | requests/s |" in tables


@pytest.fixture
def root(results: Path) -> Path:
    for name in report.DOCUMENTS:
        document = results.parent / name
        document.parent.mkdir(exist_ok=True)
        document.write_text(f"top\n{report.BEGIN}\n{report.END}\nend\n")
    return results.parent


def test_documents_are_rewritten_once_and_link_to_plots_that_are_there(root: Path, capsys):
    Report("NVIDIA H200", DECODE, ["decode"]).write(
        root / "results", Path(report.FIRST[0]).name, {}
    )
    given = ["--results", str(root / "results"), "--root", str(root)]
    assert report.main([*given, "--check"]) == 1
    assert report.main(given) == 0
    assert report.main([*given, "--check"]) == 0
    assert "rewritten: README.md, numbers.md; 4 plots drawn" in capsys.readouterr().out
    for name, plots in (("README.md", 1), ("docs/numbers.md", 4)):
        document = root / name
        links = re.findall(r"!\[.*?\]\((.*?)\)", document.read_text())
        assert len(links) == plots
        assert all((document.parent / link).is_file() for link in links)


def test_a_plot_is_sound_xml_with_a_line_for_each_series(root: Path):
    results = root / "results"
    report.main(["--results", str(results), "--root", str(root)])
    tree = ElementTree.parse(results / "h200" / "decode.svg")
    tags = [element.tag.rpartition("}")[2] for element in tree.iter()]
    assert tags.count("polyline") == 6  # ours, peer and floor, of the base and of 64 adapters
    text = {element.text for element in tree.iter() if element.text}
    assert {"loratorio, base", "floor, 64 adapters"} <= text


def test_names_are_escaped_and_an_empty_plot_is_refused():
    assert "a &lt; b" in plot("a < b", "x", "y", [Series("s", [(1, 2)])])
    with pytest.raises(ValueError, match="no points"):
        plot("t", "x", "y", [Series("s", [])])


@pytest.mark.parametrize("values", [[1, 256], [3, 5], [7], [0.3, 9000]])
def test_ticks_of_an_axis_lie_on_it_and_values_within(values):
    for logarithmic in (True, False):
        axis = Axis.over("x", values, logarithmic=logarithmic)
        assert 2 <= len(axis.ticks()) <= 10
        assert all(-1e-9 <= axis.share(v) <= 1 + 1e-9 for v in [*axis.ticks(), *values])


def test_rows_of_an_older_file_without_an_op_are_shown(tmp_path: Path):
    (tmp_path / "cpu").mkdir()
    about = {"commit": "c", "command": "x", "date": "2026-12-01", "device": "cpu"}
    old = {key: value for key, value in asdict(SERVE[0]).items() if key != "op"} | about
    (tmp_path / "cpu" / "old.json").write_text(json.dumps([old]))
    assert "serve llama-3.1-8b awq: requests" in report.render(tmp_path)


def test_any_other_bench_is_bars_that_say_what_tells_them_apart():
    lora = [
        asdict(row("lora", "layer time", value, batch=batch, adapters=adapters, unit="us",
                   floor=2.0, peer="", peer_value=None)) | {"device": "NVIDIA H200, one"}
        for value, batch, adapters in ((40.0, 1, 1), (20.0, 64, 4))
    ]  # fmt: skip
    ((name, svg),) = pictures("lora-8b", lora)
    assert name == "lora-8b.svg"
    said = [text.text for text in ElementTree.fromstring(svg).iter(f"{{{SVG}}}text")]
    assert said[0] == "lora-8b, NVIDIA H200, us"
    assert {"batch 1, adapters 1", "batch 64, adapters 4", "40", "20", "floor"} <= set(said)
    widths = [
        float(bar.get("width", 0)) for bar in ElementTree.fromstring(svg).iter(f"{{{SVG}}}rect")
    ]
    ours, floor, ours_less, _floor = widths[2:]
    assert ours == pytest.approx(2 * ours_less, abs=0.1)
    assert floor == pytest.approx(ours / 20, abs=0.1)


def test_each_unit_has_bars_of_its_own_and_a_single_number_none():
    rows = [row("serve", metric, 3.0, unit=unit)
            for metric, unit in (("a", "ms"), ("b", "ms"), ("c", "tokens/s"), ("d", "tokens/s"),
                                 ("e", "MiB"))]  # fmt: skip
    named = [name for name, _svg in pictures("serve", [asdict(r) | {"device": "x"} for r in rows])]
    assert named == ["serve-ms.svg", "serve-tokens-per-s.svg"]


def test_bars_of_nothing_are_refused():
    with pytest.raises(ValueError, match="no values"):
        bars("empty", "ms", ("ours",), [Group("a", (None,))])


def test_ways_to_choose_an_engine_are_columns_beside_one_another(tmp_path: Path):
    rows = [
        asdict(row("routing", metric, value, model="9 engines", op=op, adapters=1234, unit="%"))
        | {"device": "CPU", "commit": "c", "date": "2026-01-01", "command": "x"}
        for op, value in (("ours", 90.0), ("random", 10.0))
        for metric in ("warm", "found")
    ]
    rows.append(rows[0] | {"metric": "moved"})
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "routing.json").write_text(json.dumps(rows))
    lines = report.render(tmp_path).splitlines()
    assert "| 9 engines, 1,234 adapters | ours | random | unit |" in lines
    assert "| warm | 90 | 10 | % |" in lines
    assert "| moved | 90 |  | % |" in lines
