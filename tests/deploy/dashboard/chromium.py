"""Debian's Chromium without a screen, driven by its own driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_SECONDS = 60.0

# Without these it looks for hosts of its maker, and for updates.
_QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def missing() -> str:
    """What is missing for tests in a browser, and how to get it; "" if nothing is."""
    if find_spec("selenium") is None or find_spec("axe_playwright_python") is None:
        return "selenium and axe-core are not installed; `make dashboard-test` installs them"
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "there is no browser; on Debian, apt-get install chromium chromium-driver"
    return ""


@contextmanager
def chromium(profile: Path, width: int = 1280, height: int = 900) -> Iterator[Chrome]:
    """A browser with an empty profile in a folder."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*_QUIET, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(_SECONDS)
    driver.set_script_timeout(_SECONDS)
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Chrome, width: int, height: int, scale: float = 1.0) -> None:
    """Gives the page a size in CSS pixels, as on a device with so many pixels for each of them."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(driver: Chrome, scheme: str) -> None:
    """Has the system prefer "light" or "dark" pages, and no motion."""
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
