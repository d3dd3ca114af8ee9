"""Numbers as people read them, in the units that the dashboards name."""

from __future__ import annotations

import math
from typing import Final

from dashboards.model import Unit

_TIMES: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
_THOUSANDS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SUFFIX: Final = {"reqps": " req/s", "ops": " ops/s", "cps": " /s", "Bps": "/s", "watt": " W", "joule": " J"}


def write(value: float, unit: Unit) -> str:
    """A number with its unit: ``0.0123``, ``s`` -> ``12.3 ms``."""
    if unit == "percentunit":
        return f"{_digits(value * 100)} %"
    if unit == "s":
        return _scaled(value, _TIMES, " s", " ") if abs(value) >= 1e-9 else "0 s"
    if unit == "none" and value == int(value):
        return f"{value:.0f}"
    if unit in ("bytes", "Bps"):
        return _scaled(value, _BYTES, " B", " ") + _SUFFIX.get(unit, "")
    return _scaled(value, _THOUSANDS, "", "") + _SUFFIX.get(unit, "")


def _scaled(value: float, scales: tuple[tuple[float, str], ...], plain: str, gap: str) -> str:
    for size, name in scales:
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size)}{gap}{name}"
    if plain == " s":  # below the smallest of the times
        return f"{_digits(value / 1e-6)} µs"
    return f"{_digits(value)}{plain}"


def _digits(value: float) -> str:
    """Three significant digits, without zeros at the end."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ticks(top: float, unit: Unit = "none", count: int = 4) -> list[float]:
    """Round values from 0 up to at least ``top``; bytes are round in their own multiples."""
    if top <= 0:
        return [0.0, 1.0]
    if unit in ("bytes", "Bps"):
        size = next((size for size, _ in _BYTES if top >= size), 1)
        return [value * size for value in ticks(top / size, count=count)]
    rough = top / count
    magnitude: float = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= rough * 0.999)
    return [step * number for number in range(math.ceil(top / step * 0.999) + 1)]
