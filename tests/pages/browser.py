"""A real browser without a window, which opens pages and says what they did."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    JavascriptException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.remote.webelement import WebElement

from tests.support import wait_until

#: What is raised of an element that is not there yet, or that has just been drawn anew.
_NOT_YET = (JavascriptException, NoSuchElementException, StaleElementReferenceException)


class Browser:
    """Chromium, with what the pages that it opened logged and asked for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.requests: list[str] = []
        self.messages: list[str] = []

    def open(self, page: Path, *, theme: str = "light") -> None:
        """Open a page, and wait until its charts are drawn."""
        self.read_log()
        self.requests, self.messages = [], []
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        )
        self.driver.get(page.resolve().as_uri())
        self.wait(lambda: self.run("return document.documentElement.dataset.ready === 'true'"))
        self.read_log()

    def read_log(self) -> None:
        """Take what was logged and asked for since the last call."""
        self.messages += [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                parameters = message["params"]
                self.requests.append(parameters.get("request", parameters)["url"])

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """Return the first element that a selector matches."""
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[WebElement]:
        """Return the elements that a selector matches."""
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """Return what an element shows."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def point_at(self, element: WebElement) -> ActionChains:
        """Move the pointer onto an element; returns the chain, to press a button there."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        actions = ActionChains(self.driver).move_to_element(element)
        actions.perform()
        return ActionChains(self.driver)

    def wait(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds; the test fails with what the page said if it never does."""

        def holds() -> bool:
            try:
                return bool(condition())
            except _NOT_YET:
                return False

        try:
            wait_until(holds, what="what the page should become")
        except pytest.fail.Exception as failure:
            self.read_log()
            failure.add_note(f"the page said {self.messages}")
            raise


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Start Chromium. Where there is none, the test is skipped and says what to do; in the gate it fails."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        missing = "pages need a real browser: apt-get install chromium chromium-driver"
        (pytest.fail if os.environ.get("CKPTPLAN_BROWSER") == "required" else pytest.skip)(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # for root, as in containers
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1200,900",
        "--disable-background-networking",
        "--no-first-run",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
