"""A run of five steps dies in step 3, comes back, and finishes. Then it walks back, forward, and two ways at once.

The first process really is killed: it sends itself SIGKILL in the middle of a step, after three steps were
acknowledged. The second process knows nothing but the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from knotline import Header, SqliteBackend, Store, sweep, verify

STEPS = ["fetch", "clean", "enrich", "check", "publish"]


def work(state: dict, step: str) -> None:
    """What a step does to the state: plain Python, in place."""
    number = STEPS.index(step)
    state["done"].append(step)
    state["rows"] = state.get("rows", 0) + 100 * (number + 1)
    state["messages"] += [
        {"role": "user", "content": f"please {step} the data"},
        {"role": "assistant", "content": f"{step}: {state['rows']} rows so far"},
    ]


def go_on(place: Path, *, die_in: str | None) -> None:
    with Store(SqliteBackend(place)) as store:
        known = dict(store.runs())
        state = store.load("report") if "report" in known else {"done": [], "messages": []}
        if state["done"]:
            print(f"  found {len(state['done'])} finished steps, going on with {STEPS[len(state['done'])]!r}")
        for step in STEPS[len(state["done"]) :]:
            work(state, step)
            if step == die_in:
                print(f"  {step:8} … killed in the middle (SIGKILL)", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            header = store.append("report", state, note={"step": step}, labels=[f"step={step}"])
            print(f"  {step:8} saved as revision {header.rev}", flush=True)


def shown(store: Store, header: Header) -> str:
    state = store.load(header.run, header.rev)
    step = header.note.get("step", header.op)
    return f"  @{header.rev}  {step:8} {len(state['messages']):2} messages  {state['rows']:5} rows"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="knotline-demo-") as folder:
        place = Path(folder, "runs.db")
        print("A first process works until it dies:")
        died = subprocess.run([sys.executable, __file__, str(place), "enrich"], check=False).returncode
        print(f"  exit status {died}")
        print("A second process opens the same file:")
        subprocess.run([sys.executable, __file__, str(place)], check=True)

        with Store(SqliteBackend(place)) as store:
            print("The line of the run, newest knot first:")
            for header in store.lineage("report"):
                print(shown(store, header))
            print("Back to the second step, and forward again:")
            store.rollback("report", 1)
            print(f"  rolled back: {store.load('report')['done']}")
            store.undo("report")
            print(f"  undone:      {store.load('report')['done']}")
            print("A fork from there does not touch its origin:")
            store.fork("report", "what-if", rev=1)
            state = store.load("what-if")
            state["done"].append("another way")
            store.append("what-if", state)
            print(f"  what-if: {store.load('what-if')['done']}")
            print(f"  report:  {store.load('report')['done']}")
            report = verify(store)
            result = "clean" if report.clean else report.damage
            print(f"Verified {report.entries} entries and {report.objects} objects: {result}")
            gone = sweep(store).objects
            print(f"Swept {gone} objects that nothing leads to; {store.backend.size()} bytes in all.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        go_on(Path(sys.argv[1]), die_in=sys.argv[2] if len(sys.argv) > 2 else None)
    else:
        main()
