"""Headless Chromium, spoken to over its debugging pipe: nothing but Python and the browser."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 60  # seconds for an answer of a busy machine


class Chromium:
    """One tab. What its pages complain of and ask for is kept."""

    def __init__(self, profile):
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def fixed_numbers():  # the pipe's ends are 3 and 4 in the browser
            ends = os.dup(to_browser), os.dup(from_browser)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe",
             "about:blank"],
            preexec_fn=fixed_numbers,  # noqa: PLW1509  Popen cannot choose numbers of descriptors
            close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.last, self.session = b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def message(self):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], deadline - time.monotonic())
            part = os.read(self.read_end, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer")
            self.buffer += part
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def open(self, address, width, dark, height=900, script=True):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def complaints(self):
        """What the console shows as errors or warnings, refusals of the page's policy among it."""
        self.evaluate("0")  # what was on its way has come
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(json.dumps(params["args"]))
        return found

    def requests(self):
        """The addresses that were asked for, but for those that hold their content themselves."""
        return [event["params"]["request"]["url"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"
                and not event["params"]["request"]["url"].startswith("data:")]

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, **clip):
        options = {"clip": {"scale": 1, **clip}} if clip else {}
        answer = self.call("Page.captureScreenshot", format="png",
                           captureBeyondViewport=bool(clip), **options)
        return base64.b64decode(answer["data"])

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            pass
        finally:
            os.close(self.write_end)
            os.close(self.read_end)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
