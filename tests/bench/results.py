"""Results of a benchmark as a file, its guard and its curves.

Invariant: only ratios to a peer of the same run are compared over time. A rate alone depends on the machine as much as on the
program.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

import numpy as np

from highwater.schemas.envelope import iso_from_ms
from tests.bench.figures import Figure

OURS = "highwater"
# Packages whose versions explain a figure.
_PACKAGES = (
    "aiokafka",
    "asyncpg",
    "confluent-kafka",
    "fastavro",
    "faust-streaming",
    "highwater",
    "hdbscan",
    "numpy",
    "redis",
    "uvicorn",
)
_LESS_IS_BETTER = (
    "s",
    "ms",
    "us",
    "KiB",
    "MB",
    "GB",
    "us a request",
    "us an event",
    "CPU s",
    "CPU s a million",
    "% of a core",
)


class Machine(TypedDict):
    """Where a benchmark ran, as far as it explains a figure."""

    cores: int
    memory_gb: int
    system: str
    processor: str


class Results(TypedDict):
    """One benchmark's last figures, as `docs/benchmarks/NAME.json` holds them."""

    benchmark: str
    date: str
    machine: Machine
    versions: dict[str, str]
    figures: list[Figure]


class Ratio(NamedTuple):
    """How many times better our system is than a peer; above 1 is better, whether more or less is."""

    name: str
    ours: str
    peer: str
    value: float


class Drop(NamedTuple):
    """A ratio that is less than the stated share of what it was."""

    name: str
    ours: str
    peer: str
    before: float
    now: float


def results_of(benchmark: str, figures: Sequence[Figure], now_ms: int) -> Results:
    """Figures with where and when they were measured."""
    return {
        "benchmark": benchmark,
        "date": iso_from_ms(now_ms)[:10],
        "machine": {
            "cores": os.cpu_count() or 1,
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "system": f"{platform.system()} {platform.release().split('-')[0]}",
            "processor": _processor(),
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "figures": list(figures),
    }


def read(path: Path) -> Results:
    """Results of a file.

    Raises:
        ValueError: the file holds no results.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as results of a benchmark: {error}") from error
    if not isinstance(found, dict) or not {"benchmark", "figures"} <= found.keys():
        raise ValueError(f"{path} holds no results of a benchmark")
    return cast("Results", found)


def save(folder: Path, results: Results) -> list[Path]:
    """Write `NAME.json`, and `NAME.svg` where a figure was measured at several sizes and matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{results['benchmark']}.json"
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    curves = curves_of(results["figures"])
    drawn = path.with_suffix(".svg")
    return [path, *([drawn] if curves and _draw(drawn, results, curves) else [])]


def ratios(figures: Sequence[Figure]) -> list[Ratio]:
    """Ours to each peer, figure by figure; figures whose unit is neither better nor worse when higher are left out."""
    groups: dict[str, list[Figure]] = defaultdict(list)
    for one in figures:
        groups[_label(one)].append(one)
    found = []
    for name, group in groups.items():
        ours = [one for one in group if _is_ours(one)]
        peers = [one for one in group if not _is_ours(one)]
        for mine in ours:
            for peer in peers:
                value = _better(mine, peer)
                if value is not None:
                    found.append(Ratio(name, mine["system"], peer["system"], value))
    return found


def drops(before: Sequence[Figure], now: Sequence[Figure], share: float) -> list[Drop]:
    """What is now worth less than `share` (0 to 1) of the ratio that it had; pairs that one of both lacks are left out."""
    earlier = {one[:3]: one.value for one in ratios(before)}
    return [
        Drop(*one[:3], earlier[one[:3]], one.value)
        for one in ratios(now)
        if one[:3] in earlier and one.value < share * earlier[one[:3]]
    ]


Curves = Mapping[tuple[str, str], list[tuple[float, float]]]


def curves_of(figures: Sequence[Figure]) -> Curves:
    """(name, system) → (size of the work, value), by size; only what was measured at two sizes at least."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in figures:
        if "at" in one:
            found[one["name"], one["system"]].append((one["at"], one["value"]))
    return {key: sorted(points) for key, points in found.items() if len({size for size, _ in points}) > 1}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The b of `value = a * size ** b`, fitted by least squares of the logarithms; nan where a value is not positive."""
    if any(size <= 0 or value <= 0 for size, value in points):
        return math.nan
    sizes, values = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(sizes, values, 1)[0])


def _is_ours(one: Figure) -> bool:
    return one["system"].startswith(OURS)


def _label(one: Figure) -> str:
    at = f" at {one['at']:,.12g}" if "at" in one else ""
    return f"{one['name']}{at} [{one['unit']}]"


def _better(mine: Figure, peer: Figure) -> float | None:
    if not (mine["value"] > 0 and peer["value"] > 0):
        return None
    if mine["unit"].endswith("/s"):
        return mine["value"] / peer["value"]
    return peer["value"] / mine["value"] if mine["unit"] in _LESS_IS_BETTER else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()  # no Linux: the architecture is what there is to say
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _draw(path: Path, results: Results, curves: Curves) -> bool:
    """A plot for each name, a line for each system, both axes logarithmic; False without matplotlib."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return False
    names = list(dict.fromkeys(name for name, _ in curves))
    units = {one["name"]: one["unit"] for one in results["figures"]}
    work = {one["name"]: one.get("of", "") for one in results["figures"]}
    canvas = Canvas(figsize=(8, 3.6 * len(names)), layout="constrained")
    for name, axes in zip(names, canvas.subplots(len(names), squeeze=False)[:, 0], strict=True):
        for (curve, system), points in curves.items():
            if curve == name:
                sizes, values = zip(*points, strict=True)
                axes.plot(sizes, values, marker="o", label=f"{system} (exponent {exponent(points):.2f})")
        axes.set(xscale="log", yscale="log", xlabel=work[name], ylabel=units[name], title=name)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize="small")
    canvas.savefig(path, metadata={"Date": None})
    return True
