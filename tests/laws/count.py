"""How many steps the machines took. A soak that took none proved nothing, so whoever started it can ask for the count.

The name of the file is read when this is imported: the tests' own fixture takes such variables away later.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

STEPS: Counter[str] = Counter()
_FILE = os.environ.get("KNOTLINE_COUNT")


def tell(name: str, steps: int) -> None:
    """One line, such as `store-machine steps 2500`."""
    if _FILE:
        with Path(_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{name} steps {steps}\n")
