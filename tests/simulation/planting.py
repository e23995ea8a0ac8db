"""Plant a mistake in production code for one run: an edit of the source of one function."""

import inspect
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Edit:
    """*old*, which occurs once in the source of *owner*'s function, becomes *new*."""

    owner: Any  # a class or a module
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A mistake, and *seed*, which finds it in the named scenario."""

    name: str
    breaks: str
    scenario: str
    edits: tuple[Edit, ...]
    seed: int

    def plant(self, cleanup: ExitStack) -> None:
        """Make the edits until *cleanup* is closed."""
        for edit in self.edits:
            cleanup.callback(setattr, edit.owner, edit.function, edit.owner.__dict__[edit.function])
            setattr(edit.owner, edit.function, _edited(edit))


@cache
def _edited(edit: Edit) -> Any:
    """Return the function as edited.  Raises LookupError if the edit no longer fits the source."""
    source = textwrap.dedent(inspect.getsource(edit.owner.__dict__[edit.function]))
    if source.count(edit.old) != 1:
        raise LookupError(f"{edit.function} has {source.count(edit.old)} times {edit.old!r}")
    module = sys.modules[edit.owner.__module__ if inspect.isclass(edit.owner) else edit.owner.__name__]
    scope: dict[str, Any] = {}
    source = source.replace(edit.old, edit.new)
    code = compile(source, module.__file__ or "", "exec")
    exec(code, vars(module), scope)  # noqa: S102 - the source is this repository's
    edited: Any = scope[edit.function]
    edited.source = source  # `inspect` would read the original
    return edited
