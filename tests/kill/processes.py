"""Starting, hearing, killing: only processes that a test started itself, each by its own handle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

PROGRAM = Path(__file__).with_name("program.py")
SOAK = os.environ.get("KNOTLINE_PROFILE") == "soak"


class Program:
    """A running program and the lines that it tells."""

    def __init__(self, verb: str, *, before: tuple[str, ...] = (), **options: Any) -> None:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        said = json.dumps({key: str(it) if isinstance(it, Path) else it for key, it in options.items()})
        self.process = subprocess.Popen(
            [*before, sys.executable, "-P", str(PROGRAM), verb, said],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._errors: list[bytes] = []
        self._threads = [threading.Thread(target=self._hear), threading.Thread(target=self._err)]
        for thread in self._threads:
            thread.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def _err(self) -> None:
        assert self.process.stderr is not None
        self._errors.append(self.process.stderr.read())

    def next(self, timeout: float = 60.0) -> dict[str, Any] | None:
        """The next line; None at the end of all lines."""
        try:
            line = self.lines.get(timeout=timeout)
        except Empty:
            self.kill()
            raise AssertionError(f"nothing was heard for {timeout} s") from None
        if line is not None and "error" in line:
            self.end()
            raise AssertionError(line["error"] + "\n" + self.stderr())
        return line

    def rest(self, timeout: float = 60.0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while (line := self.next(timeout)) is not None:
            found.append(line)
        return found

    def stderr(self) -> str:
        return b"".join(self._errors).decode(errors="replace")[-3000:]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def hush(self) -> None:
        """Close its stdin: some programs end then."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> int:
        self.process.kill()
        return self.end()

    def end(self, timeout: float = 60.0) -> int:
        """Wait for it; its return code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("it did not end") from None
        finally:
            for thread in self._threads:
                thread.join()
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe is not None and not pipe.closed:
                    pipe.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if (
            any(thread.is_alive() for thread in self._threads)
            or self.process.stdout is None
            or not self.process.stdout.closed
        ):
            self.end()
