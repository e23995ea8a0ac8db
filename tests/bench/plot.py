"""A plot without a library: bars of requests a second, and latency over the number of connections, as SVG."""

import math
from collections.abc import Mapping
from html import escape

_COLOURS = ("#1f5fa8", "#d9822b", "#3b8f4e", "#b03a48", "#7a5aa6", "#6d6d6d", "#168f93", "#b38b00")
_WIDTH, _LEFT, _LABELS = 900, 70, 150
_BAR, _GAP, _TOP = 14, 12, 40
_CHART = 320


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(points: list[tuple[float, float]], colour: str, dashes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>'


def _bars(
    rates: Mapping[tuple[str, str], float], colours: Mapping[str, str], y: float
) -> tuple[list[str], float]:
    """Return bars by scenario, from *y* on, and where they end."""
    drawn = [_text(_LEFT, y, "requests/s, median of the rounds")]
    scale = (_WIDTH - _LEFT - _LABELS) / max(rates.values())
    y += _GAP
    for scenario in dict.fromkeys(scenario for scenario, _ in rates):
        drawn.append(_text(_LEFT - 6, y + _BAR, scenario, "end"))
        for (which, contender), rate in rates.items():
            if which == scenario:
                size = f'width="{rate * scale:.1f}" height="{_BAR - 2}"'
                drawn.append(f'<rect x="{_LEFT}" y="{y:.1f}" {size} fill="{colours[contender]}"/>')
                drawn.append(_text(_LEFT + rate * scale + 4, y + _BAR - 4, f"{rate:.0f} {contender}"))
                y += _BAR
        y += _GAP
    return drawn, y


def _curves(
    latencies: Mapping[tuple[str, bool, int], tuple[float, float]], colours: Mapping[str, str], y: float
) -> tuple[list[str], float]:
    """Return latency over connections on two logarithmic scales, and where the chart ends."""
    drawn = [_text(_LEFT, y, "get: ms by connections; p50 drawn through, p99 dashed; new connections thin")]
    bottom, right = y + _GAP + _CHART, _WIDTH - _LABELS
    counts = sorted({connections for _, _, connections in latencies})
    times = [time for pair in latencies.values() for time in pair]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    span = max(high - low, 1)

    def place(connections: int, time: float) -> tuple[float, float]:
        across = math.log(connections / counts[0]) / (math.log(counts[-1] / counts[0]) or 1)
        return _LEFT + across * (right - _LEFT), bottom - (math.log10(time) - low) / span * _CHART

    for power in range(low, low + span + 1):
        level = bottom - (power - low) / span * _CHART
        drawn.append(_line([(_LEFT, level), (right, level)], "#dddddd"))
        drawn.append(_text(_LEFT - 6, level + 4, f"{10.0**power:g}", "end"))
    drawn += [_text(place(count, 1)[0], bottom + 16, str(count), "middle") for count in counts]
    for contender, close in dict.fromkeys((contender, close) for contender, close, _ in latencies):
        mine = sorted(
            (n, pair) for (who, how, n), pair in latencies.items() if (who, how) == (contender, close)
        )
        for which, dashes in ((0, ""), (1, "5 4")):
            curve = _line([place(n, pair[which]) for n, pair in mine], colours[contender], dashes)
            drawn.append(curve.replace('width="2"', 'width="1"') if close else curve)
    return drawn, bottom + 2 * _GAP


def drawing(
    rates: Mapping[tuple[str, str], float], latencies: Mapping[tuple[str, bool, int], tuple[float, float]]
) -> str:
    """Return the document.

    *rates* are by scenario and contender; *latencies*, median and 99th hundredth, by contender, whether
    connections were new, and their number.
    """
    names = dict.fromkeys([who for _, who in rates] + [who for who, _, _ in latencies])
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    drawn: list[str] = []
    y: float = _TOP
    for number, (name, colour) in enumerate(colours.items()):
        drawn.append(f'<rect x="{_LEFT + number * 130}" y="8" width="10" height="10" fill="{colour}"/>')
        drawn.append(_text(_LEFT + number * 130 + 14, 17, name))
    if rates:
        more, y = _bars(rates, colours, y)
        drawn += more
    if latencies:
        more, y = _curves(latencies, colours, y + _GAP)
        drawn += more
    width = max(_WIDTH, _LEFT + len(colours) * 130)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + _GAP:.0f}" width="{width}"'
        ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
