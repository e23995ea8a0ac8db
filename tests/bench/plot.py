"""A plot without a library: bars of requests a second, and latency over the number of connections, as SVG."""

import math
from collections.abc import Mapping
from html import escape

# By scenario and contender: responses a second.
Rates = Mapping[tuple[str, str], float]
# By contender, whether connections are new, and their number: the median and the 99th hundredth.
Latencies = Mapping[tuple[str, bool, int], tuple[float, float]]

_COLOURS = ("#1f5fa8", "#d9822b", "#3b8f4e", "#b03a48", "#7a5aa6", "#6d6d6d", "#168f93", "#b38b00")
_WIDTH, _LEFT, _LABELS, _LEGEND = 900, 70, 150, 130
_BAR, _GAP, _TOP = 14, 12, 40
_CHART = 320
_SHORTEST = 0.001


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _line(points: list[tuple[float, float]], colour: str, dashes: str = "none") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
    return f'<polyline points="{path}" {style}/>'


def _bars(rates: Rates, colours: Mapping[str, str], y: float) -> tuple[list[str], float]:
    """Return bars by scenario, from *y* on, and where they end."""
    drawn = [_text(_LEFT, y, "requests/s, median of the rounds")]
    scale = (_WIDTH - _LEFT - _LABELS) / max(rates.values())
    y += _GAP
    for scenario in dict.fromkeys(scenario for scenario, _ in rates):
        drawn.append(_text(_LEFT - 6, y + _BAR - 4, scenario, "end"))
        for (which, contender), rate in rates.items():
            if which == scenario:
                drawn.append(_box(_LEFT, y, rate * scale, _BAR - 2, colours[contender]))
                drawn.append(_text(_LEFT + rate * scale + 4, y + _BAR - 4, f"{rate:.0f} {contender}"))
                y += _BAR
        y += _GAP
    return drawn, y


def _chart(
    latencies: Latencies, colours: Mapping[str, str], left: float, top: float, *, close: bool
) -> list[str]:
    """Return latency over connections, both on logarithmic scales that all charts share."""
    counts = sorted({connections for _, _, connections in latencies})
    times = [max(time, _SHORTEST) for pair in latencies.values() for time in pair]
    low = math.floor(math.log10(min(times)))
    span = max(math.ceil(math.log10(max(times))) - low, 1)
    width, bottom = _WIDTH / 2 - _LEFT - _GAP, top + _CHART

    def place(connections: int, time: float) -> tuple[float, float]:
        across = math.log(connections / counts[0]) / (math.log(counts[-1] / counts[0]) or 1)
        up = (math.log10(max(time, _SHORTEST)) - low) / span
        return left + across * width, bottom - up * _CHART

    kind = "new connections" if close else "kept connections"
    drawn = [_text(left, top - _GAP, f"get over {kind}: ms, p50 and (dashed) p99")]
    for power in range(low, low + span + 1):
        level = bottom - (power - low) / span * _CHART
        drawn.append(_line([(left, level), (left + width, level)], "#dddddd"))
        drawn.append(_text(left - 6, level + 4, f"{10.0**power:g}", "end"))
    drawn += [_text(place(count, 1)[0], bottom + 16, str(count), "middle") for count in counts]
    for contender, colour in colours.items():
        mine = [(n, pair) for (who, how, n), pair in latencies.items() if (who, how) == (contender, close)]
        for which, dashes in ((0, "none"), (1, "5 4")):
            drawn.append(_line([place(n, pair[which]) for n, pair in sorted(mine)], colour, dashes))
    return drawn


def drawing(rates: Rates, latencies: Latencies) -> str:
    """Return the document."""
    names = dict.fromkeys([who for _, who in rates] + [who for who, _, _ in latencies])
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    drawn: list[str] = []
    for number, (name, colour) in enumerate(colours.items()):
        drawn.append(_box(_LEFT + number * _LEGEND, 8, 10, 10, colour))
        drawn.append(_text(_LEFT + number * _LEGEND + 14, 17, name))
    y: float = _TOP
    if rates:
        more, y = _bars(rates, colours, y)
        drawn += more
    if latencies:
        y += 2 * _GAP
        drawn += _chart(latencies, colours, _LEFT, y, close=False)
        drawn += _chart(latencies, colours, _WIDTH / 2 + _LEFT, y, close=True)
        y += _CHART + 2 * _GAP
    width = max(_WIDTH, _LEFT + len(colours) * _LEGEND)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y:.0f}" width="{width}"'
        ' font-family="sans-serif" font-size="12">\n'
        + "\n".join([_box(0, 0, width, y, "white"), *drawn])
        + "\n</svg>\n"
    )
