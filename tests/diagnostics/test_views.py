"""Tests views: the data of the page, the page by itself, inline SVG, DOT, and the page in a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracefuse
from tests.random_programs.random_fusions import fusions
from tests.session.samples import times
from tracefuse import DataType, FusionDefinition, ShapeDtype, fuse
from tracefuse.diagnostics.view.inline_svg import svg_of
from tracefuse.diagnostics.view.layered_layout import lay_out
from tracefuse.diagnostics.view.picture import picture_of_fusion
from tracefuse.errors import OptionError, TraceError

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1400,900",
)  # fmt: skip


def model(x: Any, w: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    y = (e / e.sum(-1, keepdims=True)) @ w
    return np.tanh(y) + 1, "</script><b>"


X, W = ShapeDtype((64, 128), np.float32), ShapeDtype((128, 32), np.float32)
FUSED = fuse(model)


def page_data(page: str) -> Any:
    """Returns the data inside of a page, as its script reads it."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_has_the_graph_the_kernels_the_program_and_the_guards_of_the_explanation() -> None:
    view, explained, segments = FUSED.view(X, W), FUSED.explain(X, W), FUSED.segments(X, W)
    data = page_data(view.to_html())
    assert data == json.loads(view.to_json())
    picture = data["picture"]
    assert [op["op"] for op in picture["ops"]] == ["max", "sub", "exp", "sum", "div", "matmul", "tanh", "add"]
    assert [segment["template"] for segment in picture["segments"]] == list(explained.templates)
    assert [segment["bytes"] for segment in picture["segments"]] == list(explained.bytes_moved)
    reasons = {(b["first"], b["second"]): b["reason"] for b in picture["boundaries"]}
    assert reasons == {pair: str(verdict) for pair, verdict in explained.boundaries.items()}
    assert [(code["kernel"], code["source"]) for code in data["codes"]] == [(s.kernel, s.source) for s in segments]
    assert max(step["live"] for step in data["program"]) == explained.memory.peak
    assert [step["segment"] for step in data["program"] if step["segment"] is not None] == [0, 1]
    assert dict(data["notes"])["guards (the plan is reused while these hold)"] == list(explained.guards)
    assert {op["line"] for op in picture["ops"]} >= {"e = np.exp(x - x.max(-1, keepdims=True))"}
    assert {op["where"].partition(":")[0] for op in picture["ops"]} == {Path(__file__).name}
    assert [(e["source"], e["target"]) for e in picture["edges"]] == [
        ("input:0", "segment:0"), ("input:1", "segment:1"), ("segment:0", "segment:1"), ("segment:1", "output:9"),
    ]  # fmt: skip
    assert {v["type"] for v in picture["values"]} >= {"f32[64, 128]", "f32[64, 1]", "f32[64, 32]"}


def test_a_page_loads_nothing_and_its_data_cannot_end_its_script() -> None:
    page = FUSED.view(X, W).to_html()
    assert "http" not in page.replace("http-equiv", "")
    assert re.findall(r"\b(?:src|href)=|@import|url\(|\bfetch\(|XMLHttpRequest", page) == []
    assert page.count("</script>") == 3
    assert "default-src 'none'" in page
    assert "Permission is hereby granted" in page  # the licence of the layout travels with it


def test_a_view_without_inputs_has_symbolic_extents_and_no_kernels(tmp_path: Path) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.mul(fd.ops.sum(x, dims=[0]), 2.0))
    path = tmp_path / "a page.html"
    view = fd.view(path=path)
    assert page_data(path.read_text()) == json.loads(view.to_json())
    assert (view.codes, view.program) == ((), ())
    assert [value.type for value in view.picture.values] == ["f32[i0, 4]", "f32[4]", "f32[4]"]
    assert fd.view([np.ones((3, 4), np.float32)]).picture.values[0].type == "f32[3, 4]"
    assert str(view) == str(fd.explain())


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"view: cannot write .*: No such file or directory"):
        FUSED.view(X, W, path=tmp_path / "missing" / "page.html")
    with pytest.raises(TraceError, match=r"path cannot be 7"):
        FUSED.definition(X, W).view(path=7)  # type: ignore[arg-type]


def test_a_function_that_asks_about_values_has_a_page_for_each_stage(tmp_path: Path) -> None:
    @fuse
    def branches(x: Any) -> Any:
        return np.tanh(x) if x.sum() > 0 else x - 1

    x = np.ones(8)
    branches(x)
    views = branches.view(x, path=tmp_path / "asks.html")
    assert [[op.op for op in view.picture.ops] for view in views] == [["sum", "gt"], ["tanh"]]
    assert sorted(page.name for page in tmp_path.iterdir()) == ["asks.0.html", "asks.1.html"]
    assert page_data((tmp_path / "asks.1.html").read_text()) == json.loads(views[1].to_json())
    with pytest.raises(OptionError, match=r"timed=True, but the function asks about computed values"):
        branches.view(x, timed=True)


def test_the_candidates_of_a_segment_name_every_template_and_the_chosen_one() -> None:
    for target in ("cpu", "cuda"):
        view = fuse(lambda x: x - x.mean(-1, keepdims=True), target=target).view(ShapeDtype((4, 2_000_000), np.float32))
        (code,), (segment,) = view.codes, view.picture.segments
        chosen = [one for one in code.candidates if one.is_chosen]
        assert [one.template for one in chosen] == [segment.template]
        assert all(bool(one.refusal) != bool(one.launches) for one in code.candidates)
        offered = [one for one in code.candidates if not one.refusal]
        assert len(offered) > 1
        assert segment.bytes is not None
        assert all(one.least_bytes >= segment.bytes for one in offered)
        assert chosen[0].least_bytes > segment.bytes  # sums of parts of a row go through scratch memory


def test_a_timed_view_shows_each_segment_below_the_limits_of_the_device() -> None:
    x, w = np.ones((64, 128), np.float32), np.ones((128, 32), np.float32)
    view = FUSED.view(x, w, timed=True)
    roofline = view.roofline
    assert roofline is not None
    profiles = roofline.profile.kernel_profiles
    assert [one.operations for one in profiles] == [4 * 64 * 128 + 64 * 128, 2 * 64 * 128 * 32 + 2 * 64 * 32]
    assert [one.bytes for one in profiles] == [segment.bytes for segment in view.picture.segments]
    assert all(one.time_ms > 0 and roofline.least_ms(k) > 0 for k, one in enumerate(profiles))
    assert json.loads(view.to_json())["roofline"]["profile"]["kernel_profiles"][1]["operations"] == 2 * 64 * 32 * (
        128 + 1
    )
    assert str(view).endswith(str(roofline.profile))
    with pytest.raises(OptionError, match=r"timed=True needs the arrays of a call"):
        FUSED.view(X, W, timed=True)


def test_a_profile_of_a_function_measures_its_segments() -> None:
    profile = FUSED.profile(np.ones((64, 128), np.float32), np.ones((128, 32), np.float32))
    assert [one.operations for one in profile.kernel_profiles] == [5 * 64 * 128, 2 * 64 * 128 * 32 + 2 * 64 * 32]
    with pytest.raises(OptionError, match=r"profile needs the arrays of a call"):
        FUSED.profile(X, W)


def test_a_timed_view_and_a_profile_change_no_argument() -> None:
    @fuse
    def update(x: Any) -> None:
        x += 1

    x = np.zeros(5)
    assert update.profile(x).segments == 1
    assert update.view(x, timed=True).roofline is not None
    np.testing.assert_array_equal(x, np.zeros(5))
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], contiguity=True, dtype=DataType.Double)
        fd.add_output(fd.ops.add(t, 1.0), alias_input=t)
    assert fd.view([x], timed=True).roofline is not None
    np.testing.assert_array_equal(x, np.zeros(5))


def test_dot_has_every_op_in_the_cluster_of_its_segment() -> None:
    small = ShapeDtype((16, 32), np.float32), ShapeDtype((32, 16), np.float32)  # a product that a library computes
    dot = FUSED.view(*small).to_dot()
    clusters = re.findall(r"subgraph cluster_(\d+) \{(.*?)\n  \}", dot, re.DOTALL)
    names = {int(number): re.findall(r"\[label=\"(\w+)\", tooltip", body) for number, body in clusters}
    assert names == {0: ["max", "sub", "exp", "sum", "div"], 1: ["matmul"], 2: ["tanh", "add"]}
    assert dot.count("{") == dot.count("}")
    assert '"1.5" -> "2.6" [label="T7 f32[16, 16]"' in dot


@given(fusions())
@settings(max_examples=times(25), deadline=None)
def test_inline_svg_is_well_formed_and_shows_every_op(drawn: Any) -> None:
    fusion, _ = drawn
    root = ElementTree.fromstring(svg_of(picture_of_fusion(fusion)))
    titles = [element.text or "" for element in root.iter("title")]
    for node in fusion.nodes:
        assert any(f"{node.op.name}(" in title for title in titles)
    assert "script" not in {element.tag for element in root.iter()}


@given(st.data())
@settings(max_examples=times(50), deadline=None)
def test_a_layout_has_no_boxes_that_overlap_and_no_edge_that_rises(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    sizes = st.tuples(st.floats(1, 200), st.floats(1, 60))
    boxes = {f"b{k}": data.draw(sizes) for k in range(count)}
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    edges = [(f"b{a}", f"b{b}") for a, b in (data.draw(st.lists(pairs, max_size=60)) if count > 1 else [])]
    layout = lay_out(boxes, edges)
    assert layout.boxes.keys() == boxes.keys()
    for first in boxes:
        for second in boxes:
            apart_x = abs(layout.boxes[first][0] - layout.boxes[second][0]) - (boxes[first][0] + boxes[second][0]) / 2
            apart_y = abs(layout.boxes[first][1] - layout.boxes[second][1]) - (boxes[first][1] + boxes[second][1]) / 2
            assert first == second or apart_x > 0 or apart_y > 0
    for route in layout.routes:
        heights = [y for _, y in route]
        assert heights == sorted(heights)
    assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in layout.boxes.values())


def test_notebooks_show_pictures_without_a_script_and_the_text() -> None:
    fd = FUSED.definition(X, W)
    shown = [fd, fd.segment(), fd.segment()[0], fd.explain(), FUSED.explain(X, W), FUSED.view(X, W), FUSED]
    for one in shown:
        text = one._repr_html_()
        assert "<svg " in text, type(one)
        assert "<script" not in text
        assert one is FUSED or html.escape(str(one)) in text
    assert "not called yet" in fuse(lambda x: x)._repr_html_()


def test_the_command_writes_a_page_for_each_fusion_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport numpy as np\nfrom tracefuse import fuse\n"
        "print(sys.argv[1:], fuse(lambda x: x + 1)(np.ones(3)))\nfuse(lambda x: x * 2)(np.ones(3))\n"
    )
    command = [sys.executable, "-W", "error", "-m", "tracefuse", "view", "--folder", "pages", str(script), "-a", "b"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    first, *pages = run.stdout.splitlines()
    assert first == "['-a', 'b'] [2. 2. 2.]"
    assert [page_data(Path(page).read_text())["picture"]["ops"][0]["op"] for page in pages] == ["add", "mul"]


# -- in a browser -----------------------------------------------------------------------------------------------------


def loaded(page: Path, fragment: str, tmp_path: Path) -> str:
    """Returns the document that a browser shows, as HTML."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    run = subprocess.run([*command, f"file://{page}#{fragment}"], capture_output=True, text=True, timeout=120)
    return run.stdout


@pytest.mark.skipif(not CHROMIUM, reason="no browser is installed (chromium or google-chrome)")
def test_a_browser_draws_folded_segments_and_opens_them(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    FUSED.view(X, W, path=page)
    folded = loaded(page, "", tmp_path)
    assert 'data-ready="' in folded  # the script ran to its end
    assert len(re.findall(r'data-id="segment:\d+"[^>]*aria-expanded="false"', folded)) == 2
    assert 'class="op"' not in folded
    opened = loaded(page, "0", tmp_path)
    assert len(re.findall(r'aria-expanded="true"', opened)) == 1
    assert set(re.findall(r'data-id="(0\.\d+)"', opened)) == {f"0.{k}" for k in range(5)}
    assert "kernel s0_row" in re.sub(r"<[^>]*>", "", opened.partition('id="panel"')[2].partition("</section>")[0])


@pytest.mark.skipif(not CHROMIUM or not shutil.which("chromedriver"), reason="no browser with a driver is installed")
def test_keys_move_between_boxes_and_open_segments(tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    page = tmp_path / "page.html"
    FUSED.view(X, W, path=page)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(f"file://{page}")
        focused = "return document.activeElement.dataset.id"
        press = driver.switch_to.active_element.send_keys
        press("\ue004" * 6)  # Tab: five buttons, then the graph
        assert driver.execute_script(focused) == "input:0"
        driver.switch_to.active_element.send_keys("\ue015")  # ArrowDown
        assert driver.execute_script(focused) == "segment:0"
        driver.switch_to.active_element.send_keys("\ue007")  # Enter
        assert driver.execute_script("return document.activeElement.getAttribute('aria-expanded')") == "true"
        assert len(driver.find_elements("css selector", ".op")) == 7  # five ops, an input and an output
        driver.switch_to.active_element.send_keys("\ue007")
        assert driver.find_elements("css selector", ".op") == []
        assert driver.get_log("browser") == []
    finally:
        driver.quit()


def test_dumps_write_the_page(tmp_path: Path) -> None:
    with tracefuse.options(dump="view", dump_dir=str(tmp_path)):
        fuse(lambda x: x - 3)(np.ones(2))
    (page,) = tmp_path.glob("*/view.html")
    assert page_data(page.read_text())["picture"]["ops"][0]["op"] == "sub"
