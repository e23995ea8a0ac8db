"""The part of a long list that `--after` and `--limit` name, read and printed a few rows at a time."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from stackmgr.errors import CommandError
from stackmgr.operate.arguments import canonical_uuid, row_limit
from stackmgr.operate.command import Argument, argument
from stackmgr.operate.output import print_note

T = TypeVar("T")


def arguments(metavar: str) -> list[Argument]:
    """Return the arguments of a list whose rows have the id *metavar*."""
    return [
        argument(
            "--after", type=canonical_uuid, metavar=metavar, help="continue an earlier list after this row"
        ),
        argument("--limit", type=row_limit, metavar="N", help="rows (default all)"),
    ]


class Page(Generic[T]):
    """The rows after the one with the id *after*, at most *limit* of them.

    *read* is called with the id of its first row, and a number of rows that includes that one and one more
    than are shown, which tells whether there are more.  *id_of* returns the id of a row.
    """

    def __init__(
        self,
        read: Callable[[str | None, int | None], Iterator[T]],
        id_of: Callable[[T], str],
        after: str | None,
        limit: int | None,
    ) -> None:
        self._read, self._id_of, self._after, self._limit = read, id_of, after, limit
        self._continue_after: str | None = None

    def __iter__(self) -> Iterator[T]:
        """Return the rows.  Raises CommandError if none has the id."""
        extra = 1 if self._after is None else 2
        rows = self._read(self._after, None if self._limit is None else self._limit + extra)
        if self._after is not None and next(rows, None) is None:
            raise CommandError(f"the list has no {self._after}")
        return self._shown(rows)

    def _shown(self, rows: Iterator[T]) -> Iterator[T]:
        last = ""
        for number, row in enumerate(rows):
            if number == self._limit:
                self._continue_after = last
                return
            last = self._id_of(row)
            yield row

    def has_more(self) -> bool:
        """Whether there are more rows than those returned."""
        return self._continue_after is not None

    def print_rest(self) -> None:
        """Print how to continue, if there are more rows."""
        if self._continue_after is not None:
            print_note(f"There are more: --after {self._continue_after} continues.")
