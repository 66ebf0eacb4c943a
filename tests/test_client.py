"""`knotline.open`: a store by its address or this project's own, and the verbs on it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import knotline
from knotline import Step, Timeline
from knotline.errors import ConfigError, NotFound, Unavailable

ADDRESSES = ["memory:", "sqlite:{}/runs.db", "files:{}/runs"]


def fill(timeline: Timeline) -> None:
    for n in range(3):
        timeline.save("r1", step_name="fetch", step_index=n, state={"n": n}, metadata={"tags": ["nightly"]})
    timeline.say("r1", "success")


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_verbs(address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with knotline.open(address.format(tmp_path)) as k:
            fill(await k.timeline())
            page = await k.checkpoints("r1", limit=2)
            assert [it.id for it in page] == ["ckpt-r1-2", "ckpt-r1-1"]
            assert [it.id for it in await k.checkpoints("r1", after=page.next)] == ["ckpt-r1-0"]
            assert [it.id for it in await k.checkpoints(tag="nightly", step=1)] == ["ckpt-r1-1"]
            assert [it.execution_id for it in await k.executions(status="success", tag="nightly")] == ["r1"]
            assert (await k.history("r1")).status == (await k.status("r1")).status == "success"
            assert (await k.rollback("ckpt-r1-0")).checkpoint is not None
            with pytest.raises(NotFound, match="ckpt-r1-2"):
                await k.load("ckpt-r1-2")
            await k.undo("r1")
            await k.redo("r1")
            await k.undo("r1")
            assert (await k.load("ckpt-r1-2")).state == {"n": 2}
            assert (await k.fork("ckpt-r1-1", id="r2")).origin == "ckpt-r1-1"
            assert [(it.path, it.after) for it in (await k.diff("ckpt-r1-0", "ckpt-r2-1")).state] == [("n", 1)]
            assert (await k.run_step("ckpt-r1-1", Step("look", lambda ctx: ctx.state["n"] + 1))).output == 2
            assert (await k.pin("ckpt-r1-0", why="keep")).pinned
            assert not (await k.unpin("ckpt-r1-0")).pinned
            assert (await k.annotate("ckpt-r1-0", description="the first")).metadata.description == "the first"
            await k.export_run("r1", tmp_path / "r1.knot")
            report = await k.clean(older_than="30d", keep_last=1, max_size="2GB", status="success", dry_run=True)
            assert [fate.row.id for fate in report.remove] == ["ckpt-r1-0"]
            await k.clean(keep_last=1)
            assert [it.id for it in await k.checkpoints("r1")] == ["ckpt-r1-2", "ckpt-r1-1"]
            await k.flush()
            assert (await k.verify()).clean
        async with knotline.open("memory:") as other:
            await other.import_run(tmp_path / "r1.knot")
            assert (await other.load("ckpt-r1-2")).state == {"n": 2}

    asyncio.run(main())


def test_this_projects_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders of one name are two projects; a folder is the same one tomorrow."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    async def ids() -> list[str]:
        async with knotline.open() as k:
            found = [it.id for it in await k.checkpoints()]
            if not found:
                (await k.timeline()).save("r", step_name="s", step_index=0, state={})
            return found

    seen: list[Any] = []
    for place in ("a/app", "b/app", "a/app"):
        folder = tmp_path / place
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        seen.append(asyncio.run(ids()))
    assert seen == [[], [], ["ckpt-r-0"]]
    assert len(list((tmp_path / "data").rglob("persistence.db"))) == 2


def test_what_goes_wrong(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="did you mean"):
            async with knotline.open("sqlit:x.db"):
                pass
        k = knotline.open("memory:")
        with pytest.raises(NotFound):
            await k.history("nobody")
        await k.aclose()
        await k.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await k.executions()

    asyncio.run(main())
