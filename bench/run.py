"""Side-by-side measurements, as ratios in one run: machines differ and are noisy, ratios travel.

`make bench` runs all; `ARGS="save conversation"` runs some; `--list` names them.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any

import apsw

from knotline import (
    CheckpointManager,
    Context,
    Gate,
    JSONStorage,
    PersistenceManager,
    Retention,
    SqliteBackend,
    SQLiteStorage,
    Step,
    StepRecord,
    Store,
    Timeline,
    copy_store,
    execute_with_checkpoints,
    export_store,
    freeze,
    import_file,
    verify,
)
from knotline.backends import EncryptedBackend
from knotline.backends.files import FilesBackend
from knotline.records import moment

MESSAGE = 500
WORDS = ["".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=2 + n % 8)) for n in range(4000)]


def text(source: random.Random, size: int = MESSAGE) -> str:
    """Random words: it compresses a little worse than prose does."""
    out = ""
    while len(out) < size:
        out += source.choice(WORDS) + " "
    return out[:size]


def noise(source: random.Random, size: int = MESSAGE) -> str:
    """Random letters and digits: it hardly compresses at all."""
    return "".join(source.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=size))


def message(source: random.Random, content: Callable[[random.Random], str] = text) -> dict[str, str]:
    return {"role": source.choice(("user", "assistant")), "content": content(source)}


def say(what: str, value: str, ask: str = "") -> None:
    print(f"  {what:58} {value:>22}   {ask}", flush=True)


def clocked(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us"


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="knotline-bench-") as name:
        yield Path(name)


class Bare:
    """What SQLite itself takes: one row, one commit, the same settings."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        for pragma in ("journal_mode=wal", "synchronous=full", "wal_autocheckpoint=64"):
            list(self.db.execute(f"pragma {pragma}"))
        self.db.execute("create table log(seq integer primary key, body blob)")

    def commit(self, data: bytes) -> None:
        self.db.execute("begin immediate")
        self.db.execute("insert into log(body) values(?)", (data,))
        self.db.execute("commit")


def total(path: Path) -> int:
    return sum(os.path.getsize(f"{path}{end}") for end in ("", "-wal") if os.path.exists(f"{path}{end}"))


# -- one save ---------------------------------------------------------------------------------------------


def save() -> None:
    """A durable save of a 1 KB change beside a bare commit of the same bytes, sync and through asyncio."""
    source = random.Random(1)
    with folder() as place, Store(SqliteBackend(place / "k.db")) as store:
        bare = Bare(place / "bare.db")
        state: dict[str, Any] = {"step": 0, "document": ""}
        ours: list[float] = []
        floor: list[float] = []
        for turn in range(1500):
            state["step"] = turn
            state["document"] = text(source, 1000)
            data = state["document"].encode()
            floor.append(clocked(lambda data=data: bare.commit(data)))
            ours.append(clocked(lambda: store.append("r", state)))
        low, mine = statistics.median(floor), statistics.median(ours)
        say("bare apsw commit of 1 KB", us(low))
        say("Store.append of a 1 KB change", f"{us(mine)}  {mine / low:.2f}x", "<= 2x")

        async def through_asyncio() -> tuple[float, float, float]:
            gate = Gate(store)
            waits: list[float] = []
            hops: list[float] = []
            beside: list[float] = []
            for turn in range(1500):
                state["step"] = turn
                state["document"] = text(source, 1000)
                data = state["document"].encode()
                beside.append(clocked(lambda data=data: bare.commit(data)))  # a processor that hops is a colder one
                start = time.perf_counter()
                await gate.append("a", state)
                waits.append(time.perf_counter() - start)
                start = time.perf_counter()
                await asyncio.to_thread(int)
                hops.append(time.perf_counter() - start)
            gate.close()
            return statistics.median(waits), statistics.median(hops), statistics.median(beside)

        waited, hop, low = asyncio.run(through_asyncio())
        say("bare apsw commit of 1 KB between them", us(low))
        say("one thread hop from asyncio", us(hop))
        say("Gate.append of a 1 KB change, less one hop", f"{us(waited)}  {(waited - hop) / low:.2f}x", "<= 2x")


def concurrent() -> None:
    """100 runs saving at once through one Gate."""
    source = random.Random(2)
    with folder() as place, Store(SqliteBackend(place / "k.db")) as store:

        async def worker(gate: Gate, name: str, saves: int) -> None:
            state: dict[str, Any] = {"n": 0, "text": text(source, 200)}
            for n in range(saves):
                state["n"] = n
                await gate.append(name, state)

        async def everybody(saves: int) -> float:
            gate = Gate(store)
            start = time.perf_counter()
            await asyncio.gather(*(worker(gate, f"run-{n}", saves) for n in range(100)))
            took = time.perf_counter() - start
            gate.close()
            return 100 * saves / took

        asyncio.run(everybody(20))
        rates = [asyncio.run(everybody(100)) for _ in range(5)]
        say("durable saves a second, 100 concurrent runs", f"{statistics.median(rates):,.0f}", ">= 10,000")


def imports() -> None:
    """What `import knotline` adds to starting Python."""

    def start(code: str) -> float:
        return clocked(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    nothing, package, rooms = [], [], []
    for _ in range(15):
        nothing.append(start("pass"))
        package.append(start("import knotline"))
        rooms.append(start("from knotline import Store, SqliteBackend, verify"))
    base = statistics.median(nothing)
    say("import knotline", f"{(statistics.median(package) - base) * 1e3:.1f} ms", "<= 80 ms")
    say("... and its store and SQLite", f"{(statistics.median(rooms) - base) * 1e3:.1f} ms", "<= 80 ms")


# -- a conversation ---------------------------------------------------------------------------------------


def converse(
    path: Path,
    turns: int,
    *,
    frozen: bool = False,
    content: Callable[[random.Random], str] = text,
    key: bytes | None = None,
) -> dict[str, Any]:
    source = random.Random(3)
    still = {f"setting {n}": text(source, 60) for n in range(50)}
    state: dict[str, Any] = {"messages": [], "settings": still, "turn": 0}
    raw = sum(len(key) + len(value) for key, value in still.items())
    took: list[float] = []
    inner = SqliteBackend(path)
    store = Store(inner if key is None else EncryptedBackend(inner, key))
    for turn in range(turns):
        for _ in range(2):
            one = message(source, content)
            raw += len(one["role"]) + len(one["content"])
            state["messages"].append(freeze(one) if frozen else one)
        state["turn"] = turn
        took.append(clocked(lambda: store.append("r", state)))
    opened = total(path)
    store.close()
    return {"raw": raw, "took": took, "open": opened, "closed": total(path), "state": state}


def around(took: list[float], turn: int) -> float:
    return statistics.median(took[max(0, turn - 50) : turn + 50])


def conversation() -> None:
    """2,000 turns of 2 x 500 B in a plain dict state, with 3 KB beside that never change."""
    with folder() as place:
        result = converse(place / "k.db", 2000)
        raw, took = result["raw"], result["took"]
        say("bytes while open, WAL included / raw", f"{result['open'] / raw:.2f}x", "<= 1.5x, aim 1x")
        say("bytes closed / raw", f"{result['closed'] / raw:.2f}x")
        early, late = around(took, 100), around(took, 1950)
        say("a save at turn 100", us(early))
        say("a save at turn 2,000, plain dicts", f"{us(late)}  {late / early:.2f}x", "<= 4x")
        with Store(SqliteBackend(place / "k.db")) as store:
            assert store.load("r") == result["state"]
            newest = statistics.median(clocked(lambda: store.load("r")) for _ in range(15))
            say("load the newest state, 4,000 messages", f"{newest * 1e3:.1f} ms", "<= 10 ms")
            middles = [
                clocked(lambda rev=rev: store.load("r", rev)) for rev in random.Random(4).sample(range(2000), 60)
            ]
            say("load any middle state, slowest of 60", f"{max(middles) * 1e3:.1f} ms", "<= 30 ms")
        result = converse(place / "noise.db", 2000, content=noise)
        say("incompressible text: open / raw", f"{result['open'] / result['raw']:.2f}x", "<= 1.5x")
        result = converse(place / "frozen.db", 2000, frozen=True)
        early, late = around(result["took"], 100), around(result["took"], 1950)
        say("a save at turn 2,000, frozen messages", f"{us(late)}  {late / early:.2f}x", "<= 1.2x")
        result = converse(place / "long.db", 5000)
        say("a save at 10,000 messages, plain dicts", us(around(result["took"], 4950)), "<= 1,300 us")


def encryption() -> None:
    """Encrypted beside plain: a durable save of a 1 KB change, in turns; and the conversation's bytes."""
    source = random.Random(1)
    key = random.Random(2).randbytes(32)
    ratios: list[float] = []
    for _ in range(5):
        with (
            folder() as place,
            Store(SqliteBackend(place / "plain.db")) as plain,
            Store(EncryptedBackend(SqliteBackend(place / "sealed.db"), key)) as sealed,
        ):
            took: dict[int, list[float]] = {id(plain): [], id(sealed): []}
            states: dict[int, dict[str, Any]] = {id(plain): {}, id(sealed): {}}
            for turn in range(1000):
                document = text(source, 1000)
                # In turns, and first now one, now the other: what is first finds the disk at rest.
                for store in (plain, sealed) if turn % 2 else (sealed, plain):
                    state = states[id(store)]
                    state["step"], state["document"] = turn, document
                    took[id(store)].append(clocked(lambda store=store, state=state: store.append("r", state)))
            middles = [statistics.median(took[id(store)]) for store in (plain, sealed)]
            ratios.append(middles[1] / middles[0])
            if len(ratios) == 1:
                say("a plain save / an encrypted one", f"{us(middles[0])} / {us(middles[1])}")
    say("an encrypted save / a plain one, median of 5", f"{statistics.median(ratios):.3f}x", "<= 1.10x")
    say("the five", " ".join(f"{ratio:.3f}" for ratio in ratios))
    for what, content in {"words": text, "incompressible text": noise}.items():
        with folder() as place:
            result = converse(place / "k.db", 2000, content=content, key=key)
            with Store(EncryptedBackend(SqliteBackend(place / "k.db"), key)) as store:
                assert store.load("r") == result["state"]
            raw = result["raw"]
            say(
                f"{what}: encrypted bytes open, closed / raw",
                f"{result['open'] / raw:.2f}x, {result['closed'] / raw:.2f}x",
                "<= 1.75x",
            )


def edits() -> None:
    """What a save writes when the front is trimmed, and when a counter inside message 0 counts."""
    for name, change in {
        "trimmed front": lambda state, _: state["messages"].__delitem__(slice(0, 2)),
        "a counter inside message 0": lambda state, n: state["messages"][0].__setitem__("seen", n),
    }.items():
        source = random.Random(5)
        with folder() as place, Store(SqliteBackend(place / "k.db")) as store:
            state: dict[str, Any] = {"messages": [message(source) for _ in range(1000)]}
            store.append("r", state)
            store.backend.compact()
            before, saves = total(place / "k.db"), 640
            for n in range(saves):
                state["messages"] += [message(source), message(source)]
                change(state, n)
                store.append("r", state)
            store.backend.compact()
            grown = (total(place / "k.db") - before) / saves
        say(f"bytes a save, 2 new messages and {name}", f"{grown:,.0f} B", "<= 2,000 B")


def peer() -> None:
    """LangGraph's SqliteSaver on the same turns."""
    import sqlite3

    from langgraph.checkpoint.base import empty_checkpoint  # pyright: ignore[reportMissingImports] - bench only
    from langgraph.checkpoint.sqlite import SqliteSaver  # pyright: ignore[reportMissingImports] - bench only

    turns = 2000
    with folder() as place:
        ours = converse(place / "k.db", turns)
        source = random.Random(3)
        still = {f"setting {n}": text(source, 60) for n in range(50)}
        connection = sqlite3.connect(place / "peer.db", check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        config: Any = {"configurable": {"thread_id": "r", "checkpoint_ns": ""}}
        messages: list[Any] = []
        took: list[float] = []
        for turn in range(turns):
            messages += [message(source), message(source)]
            checkpoint: Any = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": messages, "settings": still, "turn": turn}
            checkpoint["channel_versions"] = {"messages": turn + 1, "settings": 1, "turn": turn + 1}
            start = time.perf_counter()
            config = saver.put(
                config, checkpoint, {"source": "loop", "step": turn, "parents": {}}, {"messages": turn + 1}
            )
            took.append(time.perf_counter() - start)
        connection.close()
        theirs = total(place / "peer.db")
        say("SqliteSaver: bytes, whole loop", f"{theirs / 1e6:,.0f} MB, {sum(took):.1f} s")
        say("knotline: bytes, whole loop", f"{ours['closed'] / 1e6:,.2f} MB, {sum(ours['took']):.2f} s")
        say("smaller", f"{theirs / ours['closed']:,.0f}x", ">= 100x")
        say("faster", f"{sum(took) / sum(ours['took']):.1f}x", ">= 5x")


def bare_link(place: Path, handle: int, number: int, data: bytes) -> None:
    """What files themselves take: a temporary file, synced, linked to its name, its folder synced."""
    fd = os.open(place / f"t{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    os.link(place / f"t{number}", place / f"f{number}")
    os.fsync(handle)


def apparent(place: Path) -> int:
    """Bytes of all files; a file with two names is there once."""
    return sum({it.st_ino: it.st_size for path in place.rglob("*") if S_ISREG((it := path.stat()).st_mode)}.values())


def files() -> None:
    """The store of readable files: a durable save of 1 KB, and 2,000 turns of 2 x 500 B."""
    source = random.Random(8)
    for _ in range(3):
        with folder() as place, Store(FilesBackend(place / "k")) as store:
            (place / "bare").mkdir()
            handle = os.open(place / "bare", os.O_RDONLY)
            value: dict[str, Any] = {"step": 0, "document": ""}
            ours: list[float] = []
            floor: list[float] = []
            for turn in range(500):
                value["step"] = turn
                value["document"] = text(source, 1000)
                data = value["document"].encode()
                floor.append(clocked(lambda it=(place / "bare", handle, turn, data): bare_link(*it)))
                ours.append(clocked(lambda store=store, value=value: store.append("r", value)))
            os.close(handle)
            low, mine = statistics.median(floor), statistics.median(ours)
        say("bare temp + fsync + link + fsync(dir) of 1 KB", us(low))
        say("Store.append of a 1 KB change", f"{us(mine)}  {mine / low:.2f}x", "<= 2x")
    for name, content in {"words": text, "random letters and digits": noise}.items():
        with folder() as place:
            still = {f"setting {n}": text(source, 60) for n in range(50)}
            state: dict[str, Any] = {"messages": [], "settings": still, "turn": 0}
            raw = sum(len(key) + len(value) for key, value in still.items())
            with Store(FilesBackend(place / "k")) as store:
                for turn in range(2000):
                    for _ in range(2):
                        one = message(source, content)
                        raw += len(one["role"]) + len(one["content"])
                        state["messages"].append(one)
                    state["turn"] = turn
                    store.append("r", state)
                newest = statistics.median(clocked(lambda store=store: store.load("r")) for _ in range(15))
            size = apparent(place)
        say(f"apparent bytes / raw, 2,000 turns of {name}", f"{size / raw:.2f}x", "<= 1.5x")
        say("load the newest state, 4,000 messages", f"{newest * 1e3:.1f} ms")


# -- the store --------------------------------------------------------------------------------------------


def fork() -> None:
    """Forks of a run with 1,000 messages."""
    source = random.Random(6)
    with folder() as place, Store(SqliteBackend(place / "k.db")) as store:
        store.append("r", {"messages": [message(source) for _ in range(1000)]})
        store.backend.compact()
        before = total(place / "k.db")
        took = [clocked(lambda n=n: store.fork("r", f"f{n}")) for n in range(100)]
        store.backend.compact()
        say("a fork", us(statistics.median(took)))
        say("bytes of a fork", f"{(total(place / 'k.db') - before) / 100:,.0f} B", "< 4,000 B")


def page() -> None:
    """A page of 50 headers among 100,000 checkpoints."""
    with folder() as place, Store(SqliteBackend(place / "k.db")) as store:

        async def fill() -> None:
            gate = Gate(store)

            async def one(run: int) -> None:
                for n in range(1000):
                    labels = [f"status={'failed' if n % 7 == 0 else 'success'}", f"step={n % 20}"]
                    note = {"id": f"ckpt-run-{run}-{n}", "step": f"step {n % 20}", "status": labels[0][7:], "index": n}
                    await gate.append(f"run-{run}", {"n": n}, note=note, labels=labels, sync=False)

            await asyncio.gather(*(one(run) for run in range(100)))
            gate.close()

        asyncio.run(fill())
        for what, ask in {
            "newest 50 of all": lambda: store.find(limit=50),
            "newest 50 of one run": lambda: store.find(run="run-7", limit=50),
            "newest 50 that failed": lambda: store.find(["status=failed"], limit=50),
            "newest 50 of one run that failed": lambda: store.find(["status=failed"], run="run-7", limit=50),
        }.items():
            assert len(ask().items) == 50
            say(what, us(statistics.median(clocked(ask) for _ in range(200))), "<= 1,000 us")
        newest = statistics.median(clocked(lambda: store.header("run-7")) for _ in range(200))
        say("the newest header of one run", us(newest))


def check() -> None:
    """How fast `verify` reads."""
    source = random.Random(7)
    with folder() as place:
        with Store(SqliteBackend(place / "small.db")) as store:
            blocks = [{f"part {n}": text(source, 1200) for n in range(250)} for _ in range(160)]
            for n, block in enumerate(blocks):
                store.append(f"r{n}", block, sync=False)
            verify(store)
            start = time.perf_counter()
            report = verify(store)
            took = time.perf_counter() - start
            assert report.clean
            say(f"verify, {report.objects:,} small objects", f"{report.objects / took:,.0f} a second", ">= 50,000")
        with Store(SqliteBackend(place / "large.db")) as store:
            for n in range(40):
                store.append("r", {"blob": random.Random(n).randbytes(8 << 20)}, sync=False)
            verify(store)
            start = time.perf_counter()
            report = verify(store)
            took = time.perf_counter() - start
            assert report.clean
            say("verify, objects of 8 MB", f"{report.bytes / took / 1e6:,.0f} MB/s", ">= 200 MB/s")


def moving() -> None:
    """Copy, export and import of 1 MB states, beside a plain copy of the same file with an fsync."""
    source = random.Random(8)
    key = source.randbytes(32)
    with folder() as place, Store(SqliteBackend(place / "of.db")) as store:
        for n in range(96):
            store.append(f"r{n % 4}", {"n": n, "blob": source.randbytes(1 << 20)}, sync=False)
        store.backend.compact()
        size = total(place / "of.db")
        rounds: dict[str, list[float]] = {}

        def bare(n: int) -> None:
            with open(place / "of.db", "rb") as one, open(place / f"bare-{n}", "wb") as other:
                shutil.copyfileobj(one, other, 1 << 20)
                other.flush()
                os.fsync(other.fileno())

        def copied(n: int) -> None:
            with Store(SqliteBackend(place / f"copy-{n}.db")) as target:
                copy_store(store, target)

        def imported(n: int, name: str, **more: Any) -> None:
            with Store(SqliteBackend(place / f"{name}-{n}.db")) as target:
                import_file(target, place / f"{name}-{n}.knot", **more)

        ways: dict[str, Callable[[int], Any]] = {
            "a plain copy of the file": bare,
            "copy, SQLite to SQLite": copied,
            "export": lambda n: export_store(store, place / f"all-{n}.knot"),
            "import": lambda n: imported(n, "all"),
            "export, encrypted": lambda n: export_store(store, place / f"sealed-{n}.knot", key=key),
            "import, encrypted": lambda n: imported(n, "sealed", key=key),
        }
        for n in range(4):
            for what, way in ways.items():
                rounds.setdefault(what, []).append(clocked(lambda way=way, n=n: way(n)))
            for file in place.iterdir():
                if not file.name.startswith("of.db"):
                    file.unlink()
        floor = statistics.median(rounds["a plain copy of the file"][1:])
        for what, took in rounds.items():
            middle = statistics.median(took[1:])
            asked = "" if what.startswith("a plain") else ">= 50 MB/s"
            say(what, f"{size / middle / 1e6:,.0f} MB/s  {middle / floor:.1f}x", asked)


# -- checkpoints ------------------------------------------------------------------------------------------


def checkpoints() -> None:
    """The managers beside what was expected of them when they were planned: 10-50 ms to save, 5-20 ms to load."""
    source = random.Random(11)

    async def shape(storage: Any, size: int) -> tuple[float, float]:
        saves: list[float] = []
        loads: list[float] = []
        async with storage:
            manager = CheckpointManager(PersistenceManager(storage))
            state = {"data": text(source, size), "n": 0}
            for n in range(300):
                state["n"] = n
                start = time.perf_counter()
                made = await manager.create_checkpoint(f"run-{size}", "step", n, state, {"at": n}, {})
                saves.append(time.perf_counter() - start)
                start = time.perf_counter()
                await manager.load_checkpoint(made.id)
                loads.append(time.perf_counter() - start)
        return statistics.median(saves), statistics.median(loads)

    async def overhead(storage: Any) -> tuple[float, float]:
        def sleepy(ctx: Any) -> dict[str, int]:
            time.sleep(0.1)
            return {"n": ctx.step_index}

        alone, ours = [], []
        async with storage:
            manager = CheckpointManager(PersistenceManager(storage))
            steps = [Step(f"s{n}", sleepy) for n in range(5)]
            for _ in range(7):
                start = time.perf_counter()
                for step in steps:
                    await asyncio.to_thread(step.run, Context())
                alone.append(time.perf_counter() - start)
                start = time.perf_counter()
                await execute_with_checkpoints(steps, manager=manager)
                ours.append(time.perf_counter() - start)
        return statistics.median(alone), statistics.median(ours)

    for name, make in {"SQLiteStorage": SQLiteStorage, "JSONStorage": JSONStorage}.items():
        for size in (1000, 10_000):
            with folder() as place:
                save, load = asyncio.run(shape(make("bench", place), size))
            say(f"{name}: save of {size // 1000} KB", f"{us(save)}  {0.01 / save:.0f}x faster", ">= 20x than 10 ms")
            say(f"{name}: load of {size // 1000} KB", f"{us(load)}  {0.005 / load:.0f}x faster", ">= 20x than 5 ms")
        with folder() as place:
            alone, ours = asyncio.run(overhead(make("bench", place)))
        say(f"{name}: five steps of 100 ms", f"{(ours / alone - 1) * 100:.2f}% more", "<= 1%")


def lists() -> None:
    """100,000 checkpoints in 1,000 runs, through the public timeline."""
    with folder() as place, Timeline(SqliteBackend(place / "k.db")) as timeline:

        async def fill() -> None:
            gate = Gate(timeline.store)

            async def one(run: int) -> None:
                for n in range(100):
                    saving = timeline.saving(
                        f"run-{run}",
                        step_name=f"step {n % 20}",
                        step_index=n,
                        state={"n": n},
                        status="failed" if n % 7 == 0 else "success",
                        metadata={"tags": ["nightly"] if n % 10 == 0 else [], "owner": f"u{run % 7}"},
                        workflow_id=f"w{run % 5}",
                    )
                    header = await gate.append(f"run-{run}", saving.value, note=saving.decide, sync=False)
                    timeline.saved(saving, header)

            for first in range(0, 1000, 100):
                await asyncio.gather(*(one(run) for run in range(first, first + 100)))
            gate.close()

        asyncio.run(fill())
        for what, (ask, limit) in {
            "a page of 50": (lambda: timeline.list(limit=50), "<= 5 ms"),
            "a page of one run": (lambda: timeline.list("run-7", limit=50), "<= 5 ms"),
            "filter by status": (lambda: timeline.list(status="failed", limit=50), "<= 10 ms"),
            "filter by tag": (lambda: timeline.list(tag="nightly", limit=50), "<= 10 ms"),
            "filter by metadata": (lambda: timeline.list(metadata={"owner": "u3"}, limit=50), "<= 10 ms"),
            "filter by workflow and status": (
                lambda: timeline.list(workflow_id="w2", status="failed", limit=50),
                "<= 10 ms",
            ),
            "the newest checkpoint of a run, loaded": (
                lambda: timeline.load(f"ckpt-run-{random.randrange(1000)}-99"),
                "<= 2 ms",
            ),
        }.items():
            ask()
            say(what, f"{statistics.median(clocked(ask) for _ in range(50)) * 1e3:.2f} ms", limit)
        plans = [clocked(lambda: timeline.clean(Retention(keep_last=10), dry_run=True)) for _ in range(3)]
        say("a retention plan over all of them", f"{statistics.median(plans):.2f} s", "<= 1 s")
        for n in range(1000):
            record = StepRecord(step_name=f"s{n}", step_index=n, timestamp=moment(0), result={"n": n}, duration=0.1)
            timeline.save("long", step_name=f"s{n}", step_index=n, state={"n": n}, record=record, durability="process")
        took = statistics.median(clocked(lambda: timeline.history("long")) for _ in range(15))
        say("history of a run of 1,000 steps", f"{took * 1e3:.1f} ms", "<= 20 ms")


PARTS = {
    "save": save,
    "concurrent": concurrent,
    "imports": imports,
    "conversation": conversation,
    "encryption": encryption,
    "edits": edits,
    "fork": fork,
    "page": page,
    "check": check,
    "files": files,
    "moving": moving,
    "checkpoints": checkpoints,
    "lists": lists,
    "peer": peer,
}


def main(names: list[str]) -> None:
    if names == ["--list"]:
        print("\n".join(f"{name:14} {part.__doc__}" for name, part in PARTS.items()))
        return
    for name in names or list(PARTS):
        print(f"{name}: {PARTS[name].__doc__}")
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
