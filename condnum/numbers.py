"""How numbers are written for people, in figures, sentences and tables."""

import math
from dataclasses import fields
from typing import Any


def num(value: float, digits: int = 3) -> str:
    """Write a number for people: thousands apart, a power of ten only beyond ten million or below 1e-4.

    Examples:
        >>> [num(value) for value in (1000.0, 12.589, 2.5e9, 3e-6, float("inf"), -0.0)]
        ['1,000', '12.6', '2.5·10⁹', '3·10⁻⁶', '∞', '0']
    """
    if not math.isfinite(value):
        return "—" if math.isnan(value) else "∞" if value > 0 else "−∞"
    rounded = float(f"{value:.{digits}g}") + 0.0  # no -0
    if rounded == 0 or 1e-4 <= abs(rounded) < 1e7:
        return f"{rounded:,.10g}".replace("-", "−")
    mantissa, exponent = f"{rounded:e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{float(mantissa):.{digits}g}·10{power}".replace("-", "−")


def number(value: float) -> str:
    """Format a number for a table: three significant digits, four from 1 on, whole from 1,000 on.

    Examples:
        >>> [number(v) for v in (356.2, 0.0532, 31967.99, 6852331.0, 3e-7, float("inf"), float("nan"), 0.0)]
        ['356.2', '0.0532', '31,968', '6,852,331', '3·10⁻⁷', '∞', '—', '0']
    """
    size = abs(value) if math.isfinite(value) else 0
    return num(value, 3 if not 1 <= size < 1e7 else max(4, len(f"{size:.0f}")))


def times(factor: float) -> str:
    """Write a factor in words.

    Examples:
        >>> times(1.0), times(2.5)
        ('as many', '2.5 times as many')
    """
    return "as many" if number(factor) == "1" else f"{number(factor)} times as many"


def short_repr(record: Any) -> str:
    """Return the fields of a dataclass, a line each, arrays by their shapes: its `__repr__`."""
    lines = [type(record).__name__]
    for field in fields(record):
        value, name = getattr(record, field.name), f"  {field.name:<20}"
        if getattr(value, "ndim", 0):
            shape = " × ".join(map(str, value.shape))
            lines.append(f"{name} {shape}, {str(value.dtype).removeprefix('torch.')}")
        elif isinstance(value, float) or hasattr(value, "ndim"):
            lines.append(f"{name} {number(float(value))}")
        else:
            lines.append(f"{name} {value!r}")
    return "\n".join(lines)
