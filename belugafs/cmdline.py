"""What the commands that other programs call (mount(8), fsck(8)) have in common."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser with its own exit code for wrong usage, one line to say what, and
    ``-V``."""

    def __init__(self, *, prog: str, description: str, epilog: str, usage_code: int) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._usage_code = usage_code
        self.add_argument("-V", "--version", nargs=0, action=_Version, help="print the version")

    def error(self, message: str) -> NoReturn:
        self.exit(self._usage_code, f"{self.prog}: {message}; {self.prog} --help says more\n")


class _Version(argparse.Action):
    """Looks the version up only when asked: that takes longer than all else here."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            text = version("belugafs")
        except PackageNotFoundError:
            text = "(not installed)"
        parser.exit(0, f"belugafs {text}\n")
