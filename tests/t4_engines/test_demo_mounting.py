"""The demo's way around a mount, with stand-ins for the filesystem: a tmpfs, and one that hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from belugafs.demo import mounting
from belugafs.demo.contract import DemoOptions
from belugafs.demo.flow import run_demo
from belugafs.demo.mounting import DemoError, DemoMount, mount_entry

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
        reason="needs root and /dev/fuse",
    ),
    # Another test looks for what demos leave on the machine.
    pytest.mark.alone("machine"),
    pytest.mark.timeout(300),
]

OPTIONS = DemoOptions(size="1M", prompt_tokens=260, new_tokens=2, timeout_s=60)

# A filesystem with a root directory, whose look-ups are never answered.
HANGING_FILESYSTEM = """
import os, stat, sys
import pyfuse3, trio

class Hanging(pyfuse3.Operations):
    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_mode = stat.S_IFDIR | 0o755
        entry.st_ino = inode
        return entry

    async def statfs(self, ctx):
        return pyfuse3.StatvfsData()

    async def lookup(self, parent, name, ctx=None):
        await trio.sleep_forever()

pyfuse3.init(Hanging(), sys.argv[1], {"fsname=hanging"})
try:
    trio.run(pyfuse3.main)
finally:
    pyfuse3.close(unmount=False)
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Programs that stand for belugafs's: what ``mount.belugafs`` runs can be replaced.

    Whatever a test leaves mounted below the returned directory is unmounted.
    """
    programs = {
        "mkfs.belugafs": 'echo made; : > "$3"',
        "mount.belugafs": 'mount -t tmpfs -o size=32m tmpfs "$2"',
        "fsck.belugafs": "echo clean",
        "belugafs": "echo status of $2",
    }
    for name, text in programs.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    monkeypatch.setattr(mounting, "tool", lambda name: [str(tmp_path / "bin" / name)])
    monkeypatch.setattr("belugafs.demo.flow.tool", mounting.tool)
    monkeypatch.setattr(mounting, "_wrapper_is_ours", lambda: False)
    (tmp_path / "mnt").mkdir()
    yield tmp_path
    while mount_entry(tmp_path / "mnt") is not None:
        subprocess.run(["umount", "-l", str(tmp_path / "mnt")], check=True, timeout=20)
    for pool in pools():
        pool.unlink()


def set_mount_program(root: Path, text: str) -> None:
    (root / "bin" / "mount.belugafs").write_text(text)


def hang_on_lookup(root: Path) -> None:
    server = root / "server.py"
    server.write_text(HANGING_FILESYSTEM)
    set_mount_program(root, f'#!/bin/sh\nexec {sys.executable} {server} "$2"\n')


def run_recorded(options: DemoOptions) -> tuple[int, str]:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=40, file=nowhere)
        code = run_demo(options, console)
        return code, console.export_text()


def pools() -> list[Path]:
    return list(Path("/dev/shm").glob(f"belugafs-demo-{os.getpid()}.pool"))


def test_the_steps_in_order_and_nothing_left(stand_in: Path) -> None:
    mountpoint = stand_in / "mnt"
    code, text = run_recorded(DemoOptions(**{**vars(OPTIONS), "mountpoint": mountpoint}))
    assert code == 0, text
    typed = re.findall(r"^\$ (\S+)", text, re.MULTILINE)
    assert typed == (
        ["mkfs.belugafs", "mount.belugafs", "ls", "du", "df", "belugafs", "umount", "fsck.belugafs"]
    )
    assert "same tokens: yes" in text
    assert f"status of {mountpoint}" in text
    assert mount_entry(mountpoint) is None
    assert mountpoint.is_dir()  # it was there before
    assert pools() == []


def test_keep_leaves_pool_and_mount(stand_in: Path) -> None:
    mountpoint = stand_in / "mnt"
    options = DemoOptions(**{**vars(OPTIONS), "mountpoint": mountpoint, "keep": True})
    code, text = run_recorded(options)
    assert code == 0, text
    assert f"umount {mountpoint}" in text
    assert len(list(mountpoint.rglob("*.kv"))) == 4
    assert len(pools()) == 1


def test_a_pool_that_is_found_damaged_fails_the_demo(stand_in: Path) -> None:
    (stand_in / "bin" / "fsck.belugafs").write_text("#!/bin/sh\necho page 7 is damaged\nexit 4\n")
    code, text = run_recorded(OPTIONS)
    assert code == 1
    assert "page 7 is damaged" in text
    assert pools() == []


def test_a_filesystem_that_hangs_is_aborted_and_removed(stand_in: Path) -> None:
    hang_on_lookup(stand_in)
    mountpoint = stand_in / "mnt"
    started = time.monotonic()
    options = DemoOptions(**{**vars(OPTIONS), "mountpoint": mountpoint, "timeout_s": 4.0})
    code, text = run_recorded(options)
    assert code == 1
    assert "hung for 4 s" in text
    assert time.monotonic() - started < 60
    assert mount_entry(mountpoint) is None
    assert pools() == []


def test_close_after_a_hang_frees_a_waiting_process(stand_in: Path) -> None:
    hang_on_lookup(stand_in)
    demo = DemoMount(stand_in / "x.pool", stand_in / "mnt", "1M")
    demo.make()
    demo.mount()
    waiting = subprocess.Popen(["stat", str(stand_in / "mnt" / "name")], stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    assert waiting.poll() is None
    demo.close()
    assert waiting.wait(20) != 0
    assert mount_entry(stand_in / "mnt") is None
    assert not demo.pool.exists()


def test_sigterm_cleans_up(stand_in: Path) -> None:
    hang_on_lookup(stand_in)
    mountpoint = stand_in / "mnt"
    code = (
        "from belugafs.demo import contract, flow, mounting; from pathlib import Path; import sys;"
        f"mounting.tool = flow.tool = lambda name: [{str(stand_in / 'bin')!r} + '/' + name];"
        "mounting._wrapper_is_ours = lambda: False;"
        f"options = contract.DemoOptions(size='1M', mountpoint=Path({str(mountpoint)!r}));"
        "sys.exit(flow.run_demo(options))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 30
        while mount_entry(mountpoint) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(2)  # the engine is waiting for its look-up by now
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 128 + signal.SIGTERM
    assert mount_entry(mountpoint) is None
    assert not Path(f"/dev/shm/belugafs-demo-{child.pid}.pool").exists()


@pytest.mark.parametrize("known", [True, False], ids=["", "before it is known what runs"])
def test_a_mount_that_is_interrupted_is_undone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    """The command that mounts goes on when we are told to end."""
    made = DemoMount(tmp_path / "pool", None, "16M")
    made.make()
    sleep = time.sleep

    def interrupted(_: float) -> None:
        monkeypatch.setattr(time, "sleep", sleep)
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.mount()
    assert mount_entry(made.path) is None
    if not known:
        made._daemon = None
    made.close()
    sleep(0.3)  # it would be there by now
    assert mount_entry(made.path) is None
    assert not made.path.exists()
    assert not made.pool.exists()


def test_nothing_is_mounted_over_another_mount(stand_in: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(stand_in / "mnt")], check=True)
    demo = DemoMount(stand_in / "x.pool", stand_in / "mnt", "1M")
    with pytest.raises(DemoError, match="mounted on .* already"):
        demo.mount()
    demo.close()
    assert mount_entry(stand_in / "mnt") is not None
