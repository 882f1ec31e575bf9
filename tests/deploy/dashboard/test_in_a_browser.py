"""The dashboard in Chromium: what it shows, whether everybody can use it, and how fast it is."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
import torch

from benchmarks.stalls.scene import Watched as Cluster
from stratagem_deploy.dashboard.pages import PageServer, ServerPage
from stratagem_deploy.dashboard.watcher import Watched, Watcher
from stratagem_deploy.watching.asking import ask
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.pages import offering
from tests.conftest import TOKEN
from tests.deploy.dashboard import scenes
from tests.deploy.dashboard.chromium import chromium, missing, prefer, resize
from tests.psserver.wire import RawClient
from tests.waiting import eventually

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [
    pytest.mark.dashboard,
    pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing"),
]

PICTURES = Path(__file__).parents[3] / "docs" / "dashboard"
WORKERS, VARIABLES = 64, 1000
MOST_BYTES = 1_000_000
AXE = """
const done = arguments[arguments.length - 1];
axe.run().then((found) => done(found.violations.map(
  (each) => [each.id, each.help, ...each.nodes.map((node) => node.html)].join(" | "))));
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def browser(opened: Chrome) -> Iterator[Chrome]:
    """A browser that is at no page, and has no errors."""
    yield opened
    opened.get("about:blank")
    opened.get_log("browser")


@contextmanager
def page(cluster: Cluster, interval: float = 1.0, heading: str = "") -> Iterator[str]:
    """Serves the page of a cluster; returns what signs in."""

    def look(with_variables: bool = False) -> Any:
        return ask(cluster.places, cluster.token, 5.0, with_variables)

    watcher = Watcher(Watched(look, lambda: look(True), heading, interval, 2.0))
    server = PageServer(watcher, "127.0.0.1:0")
    watcher.start()
    try:
        yield server.url
    finally:
        server.stop()
        watcher.stop()


def text(browser: Chrome, selector: str) -> str:
    found: str = browser.execute_script(
        "return document.querySelector(arguments[0])?.textContent ?? ''", selector
    )
    return found


def shown(browser: Chrome, url: str, scheme: str = "light", width: int = 1280) -> None:
    """Opens the page, and waits until it shows something."""
    prefer(browser, scheme)
    resize(browser, width, 900 if width > 600 else 844)
    browser.get(url)
    eventually(lambda: text(browser, "#servers-table tbody") != "", poll=0.2)


def taken(browser: Chrome, name: str, height: int) -> None:
    """Takes the picture of the upper part of the page for the docs."""
    PICTURES.mkdir(exist_ok=True)
    browser.execute_script("scrollTo(0, 0)")
    width = browser.execute_script("return innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    (PICTURES / f"{name}.png").write_bytes(base64.b64decode(picture))


def barriers(browser: Chrome) -> list[str]:
    """What axe finds that keeps people out."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    browser.execute_script((Path(spec.origin).parent / "axe.min.js").read_text())
    found: list[str] = browser.execute_async_script(AXE)
    return found


def errors(browser: Chrome) -> list[str]:
    return [line["message"] for line in browser.get_log("browser")]


def test_the_demo_is_shown_in_each_light_and_on_a_phone(browser: Chrome, tmp_path: Path) -> None:
    heading = "the cluster of `stratagem run examples/movielens.py`"
    with scenes.demo(tmp_path) as cluster, page(cluster, heading=heading) as url:
        shown(browser, url)
        eventually(lambda: text(browser, ".flow") != "", 240, 0.5)
        points = "return document.querySelector('.plot').getAttribute('aria-valuemax')"
        eventually(lambda: int(browser.execute_script(points)) >= 10, 240, 0.5)
        assert "KiB/s" in text(browser, ".flow") or "MiB/s" in text(browser, ".flow")
        assert text(browser, "#verdict")
        assert barriers(browser) == []
        taken(browser, "demo", 1000)
        prefer(browser, "dark")
        assert barriers(browser) == []
        taken(browser, "demo-dark", 1000)
        shown(browser, url, width=390)
        eventually(lambda: text(browser, ".flow") == "", 60, 0.2)
        assert barriers(browser) == []
        across = "return [document.documentElement.scrollWidth, innerWidth]"
        wide, room = browser.execute_script(across)
        assert wide <= room
        taken(browser, "phone", 844)
        assert errors(browser) == []


CUT = """return [...document.querySelectorAll('.tick.end')].filter(
    (each) => each.getBBox().x < 0).map((each) => each.textContent)"""
DRAW = """const done = arguments[arguments.length - 1];
import('./chart.js').then(({ Chart }) => {
  const chart = new Chart('traffic', 'rate', false);
  document.querySelector('#charts').append(chart.figure);
  chart.draw([1, 2], new Map([['ps:0', [0, 600 * 2 ** 20]]]), 60);
  done();
}, done)"""


def test_no_figure_of_an_axis_is_cut_off(browser: Chrome) -> None:
    with scenes.crowd(1, 1) as (cluster, _), page(cluster) as url:
        shown(browser, url)
        browser.execute_async_script(DRAW)
        assert "1000 MiB/s" in text(browser, "#charts")
        assert browser.execute_script(CUT) == []


def test_the_page_of_a_server_itself_is_shown_in_each_light_and_on_a_phone(
    browser: Chrome,
) -> None:
    settings = ServerSettings(token=TOKEN, metrics_bind="127.0.0.1:0")
    with (
        offering(ServerPage),
        ParameterServer(settings) as server,
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as client,
    ):
        client.open()
        client.create(weight=torch.ones(2, 3))
        shown(browser, server.page_url)
        assert text(browser, "#cluster") == "ps:0"
        eventually(lambda: "worker:0" in text(browser, "#drawing"), poll=0.2)
        assert barriers(browser) == []
        prefer(browser, "dark")
        assert barriers(browser) == []
        shown(browser, server.page_url, width=390)
        assert barriers(browser) == []
        across = "return [document.documentElement.scrollWidth, innerWidth]"
        wide, room = browser.execute_script(across)
        assert wide <= room
        browser.execute_script("document.querySelector('#variables').scrollIntoView()")
        eventually(lambda: "weight" in text(browser, "#variables-table tbody"), poll=0.2)
        assert errors(browser) == []


def test_a_stall_is_told_with_who_is_to_blame(browser: Chrome, tmp_path: Path) -> None:
    with scenes.stall(tmp_path) as cluster, page(cluster) as url:
        shown(browser, url)
        eventually(lambda: text(browser, "#verdict") == "One thing holds the cluster up", 120, 0.2)
        eventually(lambda: "training.py" in text(browser, "#findings .what"), poll=0.2)
        blamed = text(browser, "#drawing [data-state='holds others up'] .name")
        assert blamed.removeprefix("▲ ") in text(browser, "#findings .what")
        assert browser.execute_script("return document.querySelectorAll('.wait').length") == 1
        assert "waits for" in text(browser, "#waits-table thead")
        assert barriers(browser) == []
        taken(browser, "stall", 760)
        assert errors(browser) == []


def test_hostile_words_are_text(browser: Chrome) -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as client,
        page(scenes.watched(server), 0.2) as url,
    ):
        client.open()
        scenes.tell_hostile_words(client)
        shown(browser, url)
        # What turns the direction of letters is shown as a character that cannot be shown.
        harmless = scenes.HOSTILE.replace("\u202e", "\ufffd")
        eventually(lambda: harmless in text(browser, "#waits-table tbody"), poll=0.2)
        assert browser.execute_script("return document.querySelectorAll('img').length") == 0
        assert "Stratagem" in browser.title
        assert errors(browser) == []


def test_the_keys_suffice(browser: Chrome) -> None:
    from selenium.webdriver import ActionChains, Keys

    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        with page(scenes.watched(server), 0.2) as url:
            shown(browser, url)
            plot = "document.querySelector('.plot')"
            points = f"return Number({plot}?.getAttribute('aria-valuemax') ?? 0)"
            eventually(lambda: browser.execute_script(points) > 0, 120, 0.2)
            ActionChains(browser).send_keys(Keys.TAB).perform()
            focused = "return document.activeElement.textContent"
            assert browser.execute_script(focused) == "Skip to what is wrong"
            outline = "return getComputedStyle(document.activeElement).outlineStyle"
            assert browser.execute_script(outline) == "solid"
            browser.execute_script(f"{plot}.focus()")
            ActionChains(browser).send_keys(Keys.HOME).perform()
            assert browser.execute_script(f"return {plot}.getAttribute('aria-valuenow')") == "0"
            assert "ps:0 " in browser.execute_script(
                f"return {plot}.getAttribute('aria-valuetext')"
            )
            browser.execute_script("document.querySelector('#theme').focus()")
            ActionChains(browser).send_keys(Keys.ENTER).perform()
            theme = "return document.documentElement.dataset.theme"
            assert browser.execute_script(theme) == "dark"
            browser.execute_script("localStorage.clear()")
        eventually(lambda: "No connection" in text(browser, "#freshness"), poll=0.2)
        assert browser.execute_script("return localStorage.length") == 0


def test_many_variables_and_workers_are_shown_at_once(browser: Chrome) -> None:
    with scenes.crowd(WORKERS, VARIABLES) as (cluster, clients), page(cluster, 0.5) as url:
        shown(browser, url)
        updates = []
        browser.execute_script("document.querySelector('#variables').scrollIntoView()")
        eventually(lambda: text(browser, "#counted").startswith(f"{VARIABLES} variables"), poll=0.2)
        browser.execute_script("document.querySelector('#all').click()")
        rows = "return document.querySelectorAll('#variables-table tbody tr').length"
        assert browser.execute_script(rows) == VARIABLES
        _, list_took = measured(browser, "variables")
        browser.execute_script("scrollTo(0, 0)")
        for _ in range(10):
            for client in clients:
                client.heartbeat()
            updates.append(next_update(browser))
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').filter((each) => "
            "!each.name.includes('look') || each.name.endsWith('after=0')).concat("
            "performance.getEntriesByType('navigation')).reduce("
            "(sum, each) => sum + each.transferSize, 0)"
        )
        nodes = browser.execute_script("return document.querySelectorAll('.node').length")
        print(
            f"\n{WORKERS} workers, {VARIABLES} variables: an update took {median(updates):.0f} ms "
            f"in the median, {min(updates):.0f} to {max(updates):.0f} ms, the list "
            f"of all variables {list_took:.0f} ms, once; loaded {loaded:,} bytes"
        )
        assert nodes == WORKERS + 1
        assert loaded < MOST_BYTES
        assert errors(browser) == []


def next_update(browser: Chrome) -> float:
    """Waits for another update; returns the milliseconds until it was painted."""
    last, _ = measured(browser, "update")
    eventually(lambda: measured(browser, "update")[0] not in (0.0, last), poll=0.1)
    return measured(browser, "update")[1]


def measured(browser: Chrome, name: str) -> tuple[float, float]:
    """When something was measured last, and how long it took; in milliseconds."""
    began, took = browser.execute_script(
        "const last = performance.getEntriesByName(arguments[0], 'measure').at(-1);"
        "return [last?.startTime ?? 0, last?.duration ?? 0]",
        name,
    )
    return began, took
