"""Tables of cases that differ in data alone."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def each_case(names: str, table: Mapping[str, Iterable[Any]]) -> pytest.MarkDecorator:
    """Run a test for each case of *table*, which lists the cases of each kind."""
    cases = [(f"{kind}, {n}", case) for kind, of_kind in table.items() for n, case in enumerate(of_kind)]
    return pytest.mark.parametrize(names, [case for _, case in cases], ids=[title for title, _ in cases])
