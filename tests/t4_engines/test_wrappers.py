"""tools/wrappers.sh: installs what mount(8) looks for, and touches nothing that isn't ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "wrappers.sh"
INSTALLED = (
    "sbin/mount.belugafs",
    "sbin/mkfs.belugafs",
    "sbin/fsck.belugafs",
    "usr/local/bin/belugafs",
)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return make_venv(tmp_path / "venv")


def make_venv(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    for name in ("belugafs", "mkfs.belugafs", "fsck.belugafs", "mount.belugafs"):
        script = path / "bin" / name
        script.write_text(f'#!/bin/sh\necho "{path.name}:{name}" "$@"\n')
        script.chmod(0o755)
    return path


def wrappers(action: str, venv: Path, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), action, str(venv)],
        capture_output=True,
        text=True,
        env={**os.environ, "BELUGAFS_ROOT": str(root)},
        timeout=30,
    )


def test_installed_wrappers_run_the_environments_commands(tmp_path: Path, venv: Path) -> None:
    root = tmp_path / "root"
    assert wrappers("install", venv, root).returncode == 0
    for name in INSTALLED:
        ran = subprocess.run([root / name, "-o", "a b"], capture_output=True, text=True, timeout=10)
        assert ran.stdout == f"venv:{Path(name).name} -o a b\n"
    assert wrappers("install", venv, root).stdout == ""  # nothing to do
    assert wrappers("remove", venv, root).returncode == 0
    assert not any((root / name).exists() for name in INSTALLED)


def test_the_helper_of_umount(tmp_path: Path, venv: Path) -> None:
    """It runs umount -i itself, and asks who is in the way only where that fails."""
    root, path = tmp_path / "root", tmp_path / "path"
    assert wrappers("install", venv, root).returncode == 0
    helper = root / "sbin/umount.fuse.belugafs"
    path.mkdir()
    for code, told in ((0, ""), (32, "venv:belugafs holders /mnt/a b\n")):
        umount = path / "umount"
        umount.write_text(f'#!/bin/sh\nprintf "<%s>" "$@"\nexit {code}\n')
        umount.chmod(0o755)
        ran = subprocess.run(
            [helper, "/mnt/a b", "-l"],
            capture_output=True,
            text=True,
            timeout=10,
            env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        )
        assert (ran.returncode, ran.stdout) == (code, "<-i></mnt/a b><-l>")
        assert ran.stderr == told
    assert wrappers("install", venv, root).stdout == ""
    assert wrappers("remove", venv, root).returncode == 0
    assert not helper.exists()


def test_a_foreign_file_stays(tmp_path: Path, venv: Path) -> None:
    root = tmp_path / "root"
    foreign = root / INSTALLED[0]
    foreign.parent.mkdir(parents=True)
    foreign.write_text("#!/bin/sh\n# a distribution's\n")
    link = root / INSTALLED[1]
    link.symlink_to("/nonexistent/elsewhere")
    ran = wrappers("install", venv, root)
    assert ran.returncode == 1
    assert "not ours" in ran.stderr
    assert wrappers("remove", venv, root).returncode == 0
    assert foreign.read_text() == "#!/bin/sh\n# a distribution's\n"
    assert link.is_symlink()


def test_the_newest_checkout_takes_over_and_the_old_one_removes_nothing(
    tmp_path: Path, venv: Path
) -> None:
    root, other = tmp_path / "root", make_venv(tmp_path / "other")
    wrappers("install", venv, root)
    assert wrappers("install", other, root).returncode == 0
    wrappers("remove", venv, root)
    ran = subprocess.run([root / INSTALLED[0]], capture_output=True, text=True, timeout=10)
    assert ran.stdout == "other:mount.belugafs\n"
