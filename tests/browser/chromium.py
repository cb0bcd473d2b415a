"""Drives one headless Chromium through its DevTools pipe. Touches processes, pipes, a folder for its profile.

    with Chromium(folder) as browser, browser.page() as page:
        page.goto(url)
        page.click("#login button")
        page.until("document.title.startsWith('Serving')")

Rules:
- No driver and no port: the protocol goes over two pipes that only this process holds.
- Every page has a context of its own: no cookie of another one.
- A page remembers what went wrong in it (`faults`: console errors, exceptions, violated policies, failed requests) and
  where it asked (`requests`). Names other than 127.0.0.1 do not resolve.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ANSWER_S = 30.0
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
_WATCH = """
addEventListener('securitypolicyviolation', (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


class BrowserError(AssertionError):
    """The browser refuses, or what was waited for did not come."""


class Chromium:
    """One browser process; `page()` makes pages in it."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        assert program is not None, "chromium is not installed: apt-get install chromium"
        self._profile = folder / "chromium"
        (ours_in, out), (in_, ours_out) = os.pipe(), os.pipe()
        its_in, its_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (in_, out))  # it wants them as 3 and 4
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        argv = [program, *FLAGS, *sandbox, f"--user-data-dir={self._profile}", "about:blank"]
        with (folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", *argv],
                pass_fds=(its_in, its_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for fd in (in_, out, its_in, its_out):
            os.close(fd)
        self._in, self._out = ours_in, ours_out
        self._ids = itertools.count(1)
        self._buffer = b""
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    @contextmanager
    def page(self, width: int = 1280, height: int = 900) -> Iterator[Page]:
        """A new page without cookies, closed at the end."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        page.begin(width, height)
        try:
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)
            del self._pages[session]

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command and its result. Raises BrowserError."""
        id = next(self._ids)
        message: dict[str, Any] = {"id": id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        ends_s = time.monotonic() + ANSWER_S
        while True:
            answer = self.read(ends_s)
            if answer is None:
                raise BrowserError(f"{method}: no answer within {ANSWER_S:g} s")
            if answer.get("id") == id:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def read(self, ends_s: float) -> dict[str, Any] | None:
        """The next message, None when none came by `ends_s`; events are handed to their page."""
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, ends_s - time.monotonic()))[0]:
                return None
            data = os.read(self._in, 1 << 20)
            if not data:
                raise BrowserError("the browser ended")
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.heard(message["method"], message["params"])
        return message


class Page:
    """One page. Selectors are CSS; scripts are expressions, also promises."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loads = 0
        self.faults: list[str] = []
        self.requests: list[str] = []

    def begin(self, width: int, height: int) -> None:
        """Listen, and take a size."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        self.size(width, height)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command for this page. Raises BrowserError."""
        return self._browser.call(method, self._session, **params)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """An event of this page."""
        match method:
            case "Page.loadEventFired":
                self._loads += 1
            case "Runtime.exceptionThrown":
                self.faults.append(f"exception: {params['exceptionDetails']}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                said = " ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"])
                self.faults.append(f"console.{params['type']}: {said}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.faults.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    @contextmanager
    def quiet(self, part: str) -> Iterator[None]:
        """Forget the faults of what is done inside that hold `part`: a browser reports a refusal as an error."""
        before = len(self.faults)
        yield
        self.faults[before:] = [fault for fault in self.faults[before:] if part not in fault]

    # Where and how

    def size(self, width: int, height: int = 900, scale: float = 1.0) -> None:
        """The window, CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def media(self, *, dark: bool = False, still: bool = False) -> None:
        """What the reader prefers: dark colours, no motion."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def scripts(self, on: bool) -> None:
        """Whether the page's own scripts run from the next load on; ours run either way."""
        self.call("Emulation.setScriptExecutionDisabled", value=not on)

    def goto(self, url: str) -> None:
        """Open and wait until it has loaded."""
        with self.loading():
            self.call("Page.navigate", url=url)

    @contextmanager
    def loading(self, limit_s: float = ANSWER_S) -> Iterator[None]:
        """What is done inside loads a page: leave when it has."""
        before = self._loads
        yield
        ends_s = time.monotonic() + limit_s
        while self._loads == before:
            if self._browser.read(ends_s) is None:
                raise BrowserError(f"no page was loaded within {limit_s:g} s")

    # What is there

    def value(self, script: str) -> Any:
        """What an expression gives. Raises BrowserError when it throws."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails'].get('exception', {}).get('description')}")
        return found["result"].get("value")

    def until(self, script: str, limit_s: float = 15.0) -> Any:
        """Wait until an expression is true, and return it."""
        ends_s = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(BrowserError):  # a page that is being left has no scripts
                found = self.value(script)
                if found or found == {}:  # an element comes as {}
                    return found
            if time.monotonic() > ends_s:
                raise BrowserError(f"not within {limit_s:g} s: {script}\n{self.text('body')[:2000]}")
            self._browser.read(time.monotonic() + 0.05)

    def until_true(self, true: Callable[[], bool], limit_s: float = 15.0) -> None:
        """Wait until something that was heard of the page is so. Raises BrowserError."""
        ends_s = time.monotonic() + limit_s
        while not true():
            if time.monotonic() > ends_s:
                raise BrowserError(f"not within {limit_s:g} s")
            self._browser.read(time.monotonic() + 0.05)

    def text(self, selector: str) -> str:
        """What a reader sees of an element; "" when there is none."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    # What a person does

    def click(self, selector: str, limit_s: float = 15.0) -> None:
        """Press and release the mouse in the middle of the first such element. A page that moves may put another one
        there in between: what was pressed is looked at, and let go elsewhere when it is not the one. Raises
        BrowserError."""
        found = f"document.querySelector({json.dumps(selector)})"
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            x, y = self.until(f"""(() => {{
                const found = {found};
                if (!found) return null;
                found.scrollIntoView({{block: 'center', behavior: 'instant'}});
                const box = found.getBoundingClientRect();
                return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
            }})()""")
            self.mouse("mouseMoved", x, y)
            self.mouse("mousePressed", x, y)
            pressed = self.value(f"{found}?.matches(':active') ?? false")
            if not pressed:
                self.mouse("mouseMoved", 0, 0)
            self.mouse("mouseReleased", *((x, y) if pressed else (0, 0)))
            if pressed:
                return
        raise BrowserError(f"not within {limit_s:g} s: a click on {selector}")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """One event of the mouse: mouseMoved, mousePressed, mouseReleased."""
        button = "none" if kind == "mouseMoved" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def write(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press one key: Tab, Enter, Escape or a blank."""
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        down = {**code, "type": "keyDown" if text else "rawKeyDown", "modifiers": 8 * shift, "text": text}
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=8 * shift, **code)

    def tab_to(self, selector: str, most: int = 80) -> None:
        """Press Tab until such an element has the focus. Raises BrowserError."""
        for _ in range(most):
            self.press("Tab")
            if self.value(f"document.activeElement?.matches({json.dumps(selector)})"):
                return
        raise BrowserError(f"{most} times Tab did not reach {selector}")

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
