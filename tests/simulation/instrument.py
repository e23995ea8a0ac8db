"""Functions recompiled: with a point of pre-emption before each statement, or with a mistake.

Threads of one interpreter change places between any two byte codes.  In the simulation they do so where they
reach the kernel, a lock or the clock, and before each statement of what `preemptible` is given.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from tests.simulation.world import World

_NAME = "_preempt_"
_mutated: dict[FunctionType, str] = {}


def _source(function: FunctionType) -> str:
    return textwrap.dedent(inspect.getsource(function))


class _Preempting(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and not isinstance(node, ast.Module):
                calls = [
                    (ast.copy_location(ast.Expr(ast.Call(ast.Name(_NAME, ast.Load()), [], [])), each), each)
                    for each in statements
                ]
                setattr(node, field, [each for pair in calls for each in pair])
        return node


@lru_cache(maxsize=1000)
def _compiled(function: FunctionType, source: str, *, preempts: bool) -> CodeType:
    tree = ast.parse(source)
    if preempts:
        tree = _Preempting().visit(tree)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    ast.fix_missing_locations(tree)
    module = compile(tree, function.__code__.co_filename, "exec")
    return next(each for each in module.co_consts if isinstance(each, CodeType))


@lru_cache(maxsize=100)
def functions(owner: type) -> Sequence[FunctionType]:
    """Return the methods of a class that can be recompiled: those that are not bound to its scope."""
    found = [each for each in vars(owner).values() if isinstance(each, FunctionType)]
    return [each for each in found if not each.__code__.co_freevars]


@contextmanager
def preemptible(world: World, found: Sequence[FunctionType]) -> Iterator[None]:
    """Let the threads of *world* be pre-empted before each statement of the functions."""
    before = [(each, each.__code__) for each in found]
    spaces: list[dict[str, Any]] = [each.__globals__ for each in found]
    try:
        for each in found:
            each.__globals__[_NAME] = world.preempt
            each.__code__ = _compiled(each, _mutated.get(each) or _source(each), preempts=True)
        yield
    finally:
        for each, code in before:
            each.__code__ = code
        for space in spaces:
            space.pop(_NAME, None)


def replacing(function: Callable[..., Any], old: str, new: str) -> Callable[[ExitStack], None]:
    """Return a mutant: *function* with *new* in the place of *old*, which its source has once."""

    def plant(cleanup: ExitStack) -> None:
        assert isinstance(function, FunctionType)
        source = _source(function)
        if source.count(old) != 1:
            raise LookupError(f"{function.__qualname__} has {source.count(old)} times: {old}")
        code = function.__code__
        _mutated[function] = source.replace(old, new)
        function.__code__ = _compiled(function, _mutated[function], preempts=False)

        def restore() -> None:
            function.__code__ = code
            del _mutated[function]

        cleanup.callback(restore)

    return plant
