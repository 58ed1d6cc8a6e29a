"""The picture of a run, with matplotlib, which is an extra: ``pip install 'belugafs[plot]'``."""

from typing import TYPE_CHECKING, Any

from belugafs.exits import Exit
from belugafs.pool import PoolError
from belugafs.units import format_size

if TYPE_CHECKING:
    from belugafs.bench.runner import Result


def pyplot() -> Any:
    """matplotlib's drawing part. Raises PoolError where there is none."""
    try:
        import matplotlib
    except ImportError:
        raise PoolError(
            "--plot needs matplotlib, which is not installed: pip install 'belugafs[plot]'",
            Exit.UNSUPPORTED,
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: str) -> None:
    """Write a figure of ``pyplot`` to a file and close it; what can't be written, or is of a kind
    that matplotlib doesn't know, is a PoolError."""
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PoolError(f"{path}: {error}", Exit.USAGE) from error
    finally:
        pyplot().close(figure)


def draw(results: "list[Result]", path: str) -> None:
    """A panel for each size, ratio to tmpfs over clients, a line for each way; the format is
    that of the file's name. Raises PoolError."""
    plt = pyplot()
    sizes = sorted({result.cell.size_bytes for result in results})
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(5 * len(sizes), 4.5), sharey=True, squeeze=False
    )
    for panel, size_bytes in zip(panels[0], sizes, strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for result in results:
            ratio = result.ratio("tmpfs")
            if result.cell.size_bytes == size_bytes and ratio is not None:
                lines.setdefault(result.cell.label, []).append((result.cell.clients, ratio))
        for label, points in lines.items():
            panel.plot(*zip(*points, strict=True), marker="o", label=label)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_xscale("log", base=2)
        counts = sorted({count for points in lines.values() for count, _ in points})
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.set_xlabel("client processes")
        panel.set_title(format_size(size_bytes) if size_bytes else "names")
        panel.legend(fontsize="small")
    panels[0][0].set_ylabel("rate of the mount / rate of tmpfs")
    save(figure, path)
