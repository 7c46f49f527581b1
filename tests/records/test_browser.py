"""The report page in a real browser: not blank, usable by keyboard, and needing no network.

The browser is driven through its own debugging pipe: JSON messages that end in a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bitgate.records.report import render

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: apt install chromium"),
]

DEADLINE_S = 60
# White, ink, three soft greys and six class colours are the page's own; smoothed letters add more.
LEAST_COLOURS = 40

# Decodes a screenshot in the browser and counts its colours.
COUNT_COLOURS = """
(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
  return new Set(pixels).size;
})()
"""
FOCUS = """
(() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const box = at.getBoundingClientRect();
  return {
    tag: at.tagName.toLowerCase(),
    name: at.getAttribute("aria-label") || at.textContent.trim(),
    ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
    seen: box.width > 1 && box.height > 1 && box.right > 0,
  };
})()
"""


class Tab:
    """One tab of a fresh browser, with what it complained of and what it asked the network for."""

    def __init__(self, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", str(BROWSER)),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
                *("--no-first-run", "--disable-background-networking", "--disable-sync"),
                *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"),
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; events in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._note(answer)

    def open(self, page: Path) -> None:
        """Load a file and wait until it is complete."""
        self._loaded = False
        self.ask("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def colours(self) -> int:
        """How many colours a screenshot of the window has."""
        shot = self.ask("Page.captureScreenshot", format="png")["data"]
        assert base64.b64decode(shot).startswith(b"\x89PNG")
        return self.evaluate(COUNT_COLOURS % shot)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert select.select([self._answers], [], [], max(left, 0))[0], "the browser is silent"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note_request(self, url: str) -> None:
        if not url.startswith("data:"):  # a screenshot that is counted
            self.requests.append(url)

    def _note(self, event: dict[str, Any]) -> None:
        method, facts = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self._note_request(facts["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(facts["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and facts["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(facts["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and facts["type"] in {"error", "warning"}:
            self.complaints.append(json.dumps(facts["args"]))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    tab = Tab(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


@pytest.fixture
def tab(browser):
    browser.complaints.clear()
    browser.requests.clear()
    return browser


@pytest.fixture
def report(bench, make, tmp_path) -> Path:
    """A page with a lane, a timed and a rejected record, a parity map and two simulations."""
    cases = [
        {"subject": f"r0t{step}:mlp/L0/c0/decode/r0", "step": [0, step], "class": kind}
        for step, kind in enumerate(("equal", "culprit", "victim"))
    ]
    bench.evidence = bench.ledger.put(json.dumps({"cases": cases}).encode(), "application/json")
    bench.open()
    bench.promote(bench.claim())
    bench.store(outcome="rejected", reason="G9: bits differ\nexpected 3f80, got 3f81")
    for basis, scale in (("replaced", 2), ("standing", 1)):
        summary = make["summary"]((bench.opening,), basis=basis, scale=scale)
        stored = bench.ledger.put(json.dumps(summary).encode(), "application/json")
        bench.writer.append(make["simulation"](stored, (bench.opening,), name=f"slice {basis}"))
    render(bench.ledger, tmp_path / "report.html")
    return tmp_path / "report.html"


def planted(folder: Path, body: str) -> Path:
    page = folder / "planted.html"
    page.write_text(f"<!doctype html><title>planted</title><body>{body}</body>", "utf-8")
    return page


def test_the_page_is_not_blank_and_asks_for_nothing(tab, report, bench):
    tab.open(report)
    assert tab.colours() >= LEAST_COLOURS
    seen = " ".join(tab.evaluate("document.body.innerText").split())
    for text in (
        "The ledger holds:",
        bench.record().lane,
        "sorted-once",
        "2,010 ns",
        "40/40",
        "CPU timings of node lab-1 (CPU).",
        "1,000.25 output tok/s",
        "25 % exact, 60 % interpolated, 15 % assumed",
    ):
        assert text in seen, text
    assert tab.requests == [report.as_uri()]
    assert tab.complaints == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", None),
        ("<p style='display: none'>The ledger holds:</p>", None),
        ("<script>console.error('planted')</script>", "planted"),
        ("<script>absent()</script>", "Uncaught"),
        ("<img hidden src='https://example.org/pixel.png'>", "ERR_"),
    ],
    ids=["blank", "hidden", "console", "exception", "network"],
)
def test_what_is_planted_is_found(tab, tmp_path, body, says):
    page = planted(tmp_path, body)
    tab.open(page)
    assert tab.colours() < LEAST_COLOURS
    assert "The ledger holds:" not in tab.evaluate("document.body.innerText")
    assert bool(tab.complaints) == (says is not None)
    assert says is None or says in " ".join(tab.complaints)
    assert (tab.requests != [page.as_uri()]) == ("<img" in body)


def test_the_keyboard_reaches_everything_and_shows_where_it_is(tab, report):
    tab.open(report)
    visited = []
    for _ in range(200):
        tab.press("Tab", 9)
        focus = tab.evaluate(FOCUS)
        if focus["tag"] == "body":
            break
        assert focus["ring"], focus
        assert focus["seen"], focus
        visited.append((focus["tag"], " ".join(focus["name"].split())))
    assert visited[:2] == [("a", "Skip to the records"), ("a", "Skip to the simulations")]
    kinds = {tag for tag, _ in visited}
    assert {"a", "div", "summary"} <= kinds
    names = [name for _, name in visited]
    assert any(name.startswith("sorted-once: promoted") for name in names)  # a mark of the chart
    assert "Prices of slice standing" in names
    assert len(visited) == tab.evaluate(
        "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')]"
        ".filter(one => one.checkVisibility()).length"
    )


def test_a_focus_that_nobody_sees_is_found(tab, tmp_path):
    hidden = "<style>:focus-visible { outline: none } b { margin-left: -90rem }</style>"
    tab.open(planted(tmp_path, f"{hidden}<a href='#'>no ring</a> <b tabindex='0'>outside</b>"))
    found = []
    for _ in range(2):
        tab.press("Tab", 9)
        focus = tab.evaluate(FOCUS)
        found.append((focus["name"], focus["ring"], focus["seen"]))
    assert found == [("no ring", False, True), ("outside", False, False)]


def test_enter_follows_a_link_and_opens_a_reason(tab, report):
    tab.open(report)
    tab.press("Tab", 9)
    tab.press("Enter", 13, "\r")
    assert tab.evaluate("location.hash") == "#records"
    tab.evaluate("[...document.querySelectorAll('summary')].at(0).focus()")
    closed = tab.evaluate("document.activeElement.parentElement.open")
    tab.press("Enter", 13, "\r")
    assert tab.evaluate("document.activeElement.parentElement.open") is not closed


def test_a_screen_reader_hears_a_name_for_every_table_and_drawing(tab, report):
    tab.open(report)
    nodes = tab.ask("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in {"table", "image", "heading", "link"}
    ]
    assert {role for role, _ in named} == {"table", "image", "heading", "link"}
    assert [role for role, name in named if not name.strip()] == []
    coverage = "Coverage of slice standing: 25 % exact, 60 % interpolated, 15 % assumed"
    assert ("image", coverage) in named


def test_it_fits_a_telephone_and_a_dark_room(tab, report):
    tab.open(report)
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.ask(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=740,
        deviceScaleFactor=1,
        mobile=False,
    )
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    tab.ask("Emulation.setEmulatedMedia", features=dark)
    try:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
        assert tab.colours() >= LEAST_COLOURS
    finally:
        tab.ask("Emulation.clearDeviceMetricsOverride")
        tab.ask("Emulation.setEmulatedMedia", features=[])
