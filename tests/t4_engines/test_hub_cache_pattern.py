"""A directory of downloaded models as the Hugging Face hub's cache lays it out.

Files are stored once, by hash, under blobs/; snapshots of revisions are directories of relative
symbolic links to them; a lock file for each blob is held by flock while it is written.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

# usage: FETCH TOP REVISION NAME SEED BYTES: as a download does it, at most once among processes.
FETCH = """
import fcntl, hashlib, os, sys
from pathlib import Path
top, revision, name, seed, size = Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5])
content = hashlib.shake_128(seed.encode()).digest(size)
key = hashlib.sha256(content).hexdigest()
model = top / "models--tiny--random"
for part in (model / "blobs", model / "refs", model / "snapshots" / revision, top / ".locks"):
    part.mkdir(parents=True, exist_ok=True)
lock = os.open(top / ".locks" / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o664)
fcntl.flock(lock, fcntl.LOCK_EX)
blob = model / "blobs" / key
if blob.exists():
    print("found")
else:
    unfinished = model / "blobs" / f"{key}.incomplete"
    assert not unfinished.exists()
    with unfinished.open("ab") as file:  # a download that broke off goes on at its end
        for start in range(0, size, 65536):
            file.write(content[start:start + 65536])
    os.replace(unfinished, blob)
    print("fetched")
link = model / "snapshots" / revision / name
target = os.path.relpath(blob, link.parent)
if not link.is_symlink():
    os.symlink(target, link)
fcntl.flock(lock, fcntl.LOCK_UN)
(model / "refs" / "main").write_text(revision)
"""


# usage: HOLD LOCK_FILE
HOLD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def fetch(top: Path, revision: str, name: str, seed: str, size: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, str(top), revision, name, seed, str(size)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.strip()


def test_two_processes_download_once(kv_dir: Path) -> None:
    size = 3_000_000
    both = [fetch(kv_dir, "rev1", "model.safetensors", "weights", size) for _ in range(2)]
    assert sorted(said(process) for process in both) == ["fetched", "found"]
    model = kv_dir / "models--tiny--random"
    link = model / "snapshots/rev1/model.safetensors"
    content = hashlib.shake_128(b"weights").digest(size)
    assert os.readlink(link) == f"../../blobs/{hashlib.sha256(content).hexdigest()}"
    assert link.stat().st_size == size
    assert link.lstat().st_size == len(os.readlink(link))
    with link.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[:] == content

    # Another revision with the same weights stores nothing twice.
    assert said(fetch(kv_dir, "rev2", "model.safetensors", "weights", size)) == "found"
    assert said(fetch(kv_dir, "rev2", "config.json", "config", 700)) == "fetched"
    assert len(os.listdir(model / "blobs")) == 2
    assert os.path.samefile(link, model / "snapshots/rev2/model.safetensors")
    assert (model / "refs/main").read_text() == "rev2"

    # Removing a revision leaves what the other one needs.
    shutil.rmtree(model / "snapshots/rev1")
    assert (model / "snapshots/rev2/model.safetensors").read_bytes() == content
    (model / "blobs" / hashlib.sha256(content).hexdigest()).unlink()
    assert (model / "snapshots/rev2/model.safetensors").is_symlink()
    assert not (model / "snapshots/rev2/model.safetensors").exists()


def test_a_lock_goes_with_its_process(kv_dir: Path) -> None:
    key = hashlib.sha256(hashlib.shake_128(b"weights").digest(1000)).hexdigest()
    (kv_dir / ".locks").mkdir()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(kv_dir / ".locks" / f"{key}.lock"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        fd = os.open(kv_dir / ".locks" / f"{key}.lock", os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError("the lock of another process was not seen")
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
        waiting = fetch(kv_dir, "rev1", "model.safetensors", "weights", 1000)
        try:
            waiting.wait(0.5)
            raise AssertionError("a lock did not hold another process back")
        except subprocess.TimeoutExpired:
            pass
    finally:
        holder.kill()
        holder.wait(30)
    assert said(waiting) == "fetched"
