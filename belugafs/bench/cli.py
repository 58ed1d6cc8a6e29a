"""The command ``belugafs bench``."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator

import click

from belugafs.command import Command, json_option, say, size_value, terminable
from belugafs.exits import Exit
from belugafs.pool import PoolError
from belugafs.units import parse_size

_CLIENTS_MAX = 256


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        return [parse_size(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    parts = value.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= _CLIENTS_MAX for part in parts):
        raise click.BadParameter(f"{value!r}: numbers from 1 to {_CLIENTS_MAX}, such as 1,2,4")
    return [int(part) for part in parts]


@click.command(
    "bench",
    cls=Command,
    short_help="How fast a mount is, beside tmpfs and memcpy.",
    examples=[
        ("belugafs bench", "on a pool in memory that is made for it, under 2 minutes"),
        ("belugafs bench /mnt/beluga", "on a mount; nothing in it is evicted"),
        ("belugafs bench --sizes 64K --clients 1 --seconds 10", "one question, quickly"),
        ("belugafs bench --plot bench.svg --json >bench.json", "to keep"),
        ("belugafs bench --library", "the client library instead, beside a dict and FUSE"),
        ("belugafs bench --library --peers --blocks 1000000", "with LMDB and Mooncake, some GB"),
    ],
    exits=(
        Exit.OK,
        Exit.USAGE,
        Exit.NOT_FOUND,
        Exit.PERMISSION,
        Exit.NO_SPACE,
        Exit.IO_ERROR,
        Exit.UNSUPPORTED,
        Exit.INTERRUPTED,
        Exit.TERMINATED,
    ),
)
@click.argument("mount", required=False, metavar="[MOUNT]", type=click.Path())
@click.option(
    "--size",
    "pool_bytes",
    metavar="SIZE",
    default="1G",
    show_default=True,
    callback=size_value,
    help="Size of the pool that is made without MOUNT.",
)
@click.option(
    "--clients",
    "client_counts",
    metavar="N,...",
    default="1,2,4,8",
    show_default=True,
    callback=_counts,
    help="How many processes at the same time.",
)
@click.option(
    "--sizes",
    "sizes_bytes",
    metavar="SIZE,...",
    default="16K,2.5M,40M",
    show_default=True,
    callback=_sizes,
    help="Sizes of files.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Rounds, at most; shown are medians.",
)
@click.option(
    "--seconds",
    "budget_s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="No further round begins if it would take longer, beside making files.",
)
@click.option(
    "--tmpfs",
    default="/dev/shm",
    show_default=True,
    type=click.Path(),
    help="The directory to compare with.",
)
@click.option(
    "--library",
    "of_library",
    is_flag=True,
    help="Measure the client library instead, on pools of this process below --tmpfs.",
)
@click.option(
    "--blocks",
    metavar="N",
    type=click.IntRange(20_000),
    help="With --library: blocks of the large pool; as many as fit.  [default: 10000000]",
)
@click.option(
    "--block",
    "block_bytes",
    metavar="SIZE",
    default="256K",
    show_default=True,
    callback=size_value,
    help="With --library: size of the blocks that are leased.",
)
@click.option(
    "--peers",
    is_flag=True,
    help="With --library: beside LMDB on tmpfs and Mooncake's shared memory, if installed.",
)
@click.option("--plot", type=click.Path(), help="Draw the ratios into this file (.svg, .png).")
@json_option
def bench_command(
    mount: str | None,
    pool_bytes: int,
    client_counts: list[int],
    sizes_bytes: list[int],
    rounds: int,
    budget_s: float,
    tmpfs: str,
    of_library: bool,
    blocks: int | None,
    block_bytes: str,
    peers: bool,
    plot: str | None,
    as_json: bool,
) -> int:
    """Measure a mount beside tmpfs and memcpy, in one run.

    Reading, mapping, writing with rename, stat, a miss, listing, and mounting; through the page
    cache and past it (O_DIRECT). Each is measured in rounds that go from one place to the other and
    back, so that a noisy machine disturbs both, and the ratio is the median of the rounds' ratios:
    trust it before the figures.

    Without MOUNT a pool in memory is made, mounted, and removed. In MOUNT a directory is used and
    removed.
    """
    # Not before it runs: the group's help needs none of this.
    from belugafs.bench import place, plan, report, runner
    from belugafs.bench import plot as plotting

    if plot is not None:
        plotting.pyplot()  # find out now, not after minutes
    if of_library:
        if mount is not None:
            raise click.UsageError("--library makes its own pools: leave MOUNT out")
        return _library(tmpfs, blocks, int(block_bytes), rounds, budget_s, peers, plot, as_json)
    if peers or blocks is not None:
        raise click.UsageError("--peers and --blocks are for --library")
    room = plan.room_bytes(sizes_bytes, client_counts)
    with (
        terminable(),
        place.tmpfs_dir(tmpfs) as beside,
        place.measured_place(mount, str(pool_bytes), room) as where,
    ):
        run = runner.Runner(
            where,
            beside,
            sizes_bytes=sizes_bytes,
            clients=client_counts,
            rounds=rounds,
            budget_s=budget_s,
        )
        try:
            with _bar(run.steps, shown=not as_json) as step:
                results = run.run(step)
            times = runner.mount_times(where, rounds) if where.is_ours else None
        except BaseException:
            if where.is_ours:
                where.abort()
            else:
                with contextlib.suppress(PoolError):
                    run.clean_up()
            raise
        about = {
            "pool": where.pool,
            "mount_point": where.mount_point,
            "tmpfs": tmpfs,
            "rounds": len(results[0].mount),
        }
    if as_json:
        say(json.dumps(report.as_dict(results, times, about), indent=1))
    else:
        report.print_tables(results, times)
    if plot is not None:
        plotting.draw(results, plot)
    return Exit.OK


def _library(
    directory: str,
    many: int | None,
    block_bytes: int,
    rounds: int,
    budget_s: float,
    with_peers: bool,
    plot: str | None,
    as_json: bool,
) -> int:
    from belugafs.bench.library import report, run

    if not os.path.isdir(directory):
        raise PoolError(f"{directory} is no directory; say where tmpfs is with --tmpfs", Exit.USAGE)
    plan = run.Plan(
        many=10_000_000 if many is None else many,
        block_bytes=block_bytes,
        rounds=rounds,
        budget_s=budget_s,
        with_peers=with_peers,
        directory=directory,
    )
    with terminable(), _bar(None, shown=not as_json) as step:
        outcome = run.run(plan, step)
    if as_json:
        say(json.dumps(report.as_dict(outcome), indent=1))
    else:
        report.print_tables(outcome)
    if plot is not None:
        report.draw(outcome, plot)
    return Exit.OK


@contextlib.contextmanager
def _bar(total: int | None, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, if that is a terminal and ``shown``."""
    if not shown or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        first = True

        def step(text: str) -> None:
            nonlocal first
            bar.update(task, advance=0 if first else 1, description=f"{text:<36}")
            first = False

        yield step
