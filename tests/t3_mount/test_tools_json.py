"""The commands seen by a script and by a newcomer: JSON of one shape in every state, exit codes
that it can rely on, and help that shows what to type."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import click
import pytest

from belugafs.cli import main

_CONTEXT = click.Context(main, info_name="belugafs")


@pytest.mark.parametrize("name", main.list_commands(_CONTEXT))
def test_help_of_every_command_has_an_example_and_exit_codes(name: str) -> None:
    command = main.get_command(_CONTEXT, name)
    assert command is not None and command.help
    text = command.get_help(click.Context(command, parent=_CONTEXT, info_name=name))
    assert f"  belugafs {name}" in text.partition("Examples:")[2]
    assert "  0 " in text.partition("Exit status:")[2]
    assert name in main.get_help(_CONTEXT)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("belugafs.mkfs", "mkfs.belugafs"),
        ("belugafs.mount", "mount.belugafs"),
        ("belugafs.fsck", "fsck.belugafs"),
    ],
)
def test_so_has_help_of_every_program(mounted_pool: Any, module: str, name: str) -> None:
    done = mounted_pool.command(module, "--help")
    assert done.returncode == 0 and not done.stderr
    text = done.stdout.lower()
    assert f"  {name} " in text.partition("examples:")[2]
    assert "0 " in text.partition("exit status:")[2]


def _json(mounted_pool: Any, *arguments: object, code: int = 0) -> Any:
    done = mounted_pool.command("belugafs.cli", *map(str, arguments))
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_status_has_one_shape_mounted_dead_and_unmounted(mounted_pool: Any) -> None:
    (mounted_pool.path / "f").write_bytes(b"x" * 8192)
    mounted = _json(mounted_pool, "status", "--json", mounted_pool.path)
    assert mounted["error"] is None
    assert mounted["config"]["mount_point"] == str(mounted_pool.path)
    assert mounted["stats"]["used_granules"] * mounted["granule_bytes"] == 8192

    os.kill(mounted_pool.daemon_pid, signal.SIGKILL)
    mounted_pool.wait_gone()
    reports = _json(mounted_pool, "status", "--json")
    (dead,) = [report for report in reports if report["mount_point"] == str(mounted_pool.path)]
    assert "mounting it again heals it" in dead["error"]
    assert dead["stats"] == {}
    text = mounted_pool.command("belugafs.cli", "status").stdout
    assert dead["error"] in text

    mounted_pool.mount()
    mounted_pool.umount()
    unmounted = _json(mounted_pool, "status", "--json", mounted_pool.pool_path)
    assert unmounted["mount_point"] is None
    assert unmounted["uuid"] == mounted["uuid"]
    assert set(mounted) == set(dead) == set(unmounted)
    assert set(unmounted["stats"]) <= set(mounted["stats"])
    mounted_pool.mount()


@pytest.mark.parametrize("label", ["12", "yes", "no", "", "two words"])
def test_a_label_is_text_whatever_it_looks_like(
    label: str, mounted_pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from belugafs import status
    from belugafs.control import format_pairs, parse_pairs

    stats = parse_pairs(format_pairs({**mounted_pool.stats(), "label": label}))
    monkeypatch.setattr(status, "_control_files", lambda mount: (stats, {}))
    report = status.report(str(mounted_pool.path))
    assert report["label"] == label
    assert "label" not in report["stats"]


def test_a_daemon_that_hangs_does_not_hang_status(mounted_pool: Any) -> None:
    place = str(mounted_pool.path)
    mounted_pool.stop_daemon()
    try:
        done = mounted_pool.command("belugafs.cli", "status", "--json", place)
    finally:
        os.kill(mounted_pool.daemon_pid, signal.SIGCONT)
    assert done.returncode == 23
    assert f"umount -f {place} ends" in json.loads(done.stdout)["error"]
    assert _json(mounted_pool, "status", "--json", place)["error"] is None


def test_an_error_is_json_too(mounted_pool: Any, pool_dir: Any) -> None:
    (pool_dir / "zeros").write_bytes(bytes(1 << 20))
    for arguments, name in (
        (("status", "--json", pool_dir / "none"), "NOT_FOUND"),
        (("ls", "--json", mounted_pool.path / "none"), "NOT_FOUND"),
        (("status", "--json", pool_dir / "zeros"), "EMPTY"),
    ):
        done = mounted_pool.command("belugafs.cli", *map(str, arguments))
        found = json.loads(done.stdout)
        assert (found["ok"], found["code"]) == (False, name)
        assert found["exit_code"] == done.returncode != 0
        assert found["error"] in done.stderr


def test_wrong_usage_is_exit_code_1(mounted_pool: Any) -> None:
    for arguments in (("status", "--no-such"), ("ls",), ("no-such",)):
        done = mounted_pool.command("belugafs.cli", *arguments)
        assert done.returncode == 1
        assert "Usage: " in done.stderr


def test_a_reader_that_goes_away_is_no_error(mounted_pool: Any) -> None:
    import subprocess
    import sys

    for number in range(300):
        (mounted_pool.path / f"{number:0200}").write_bytes(b"")
    command = [sys.executable, "-m", "belugafs.cli", "ls", str(mounted_pool.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(20) == 0


def test_doctor_says_what_is_needed(mounted_pool: Any) -> None:
    findings = {item["name"]: item for item in _json(mounted_pool, "doctor", "--json")}
    assert findings["/dev/fuse"] == {
        "name": "/dev/fuse",
        "state": "ok",
        "text": "can be opened",
        "needed": True,
    }
    assert not findings["DAX devices"]["needed"]
