"""Functions recompiled with a point of pre-emption before each statement.

Threads of one interpreter change places between any two byte codes.  In the simulation they do so where they
reach the kernel, a lock or the clock, and before each statement of what `preemptible` is given.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any

from tests.simulation.world import World

_NAME = "_preempt_"


def _source(function: FunctionType) -> str:
    # A function with a planted mistake has its source with it.
    return getattr(function, "source", None) or textwrap.dedent(inspect.getsource(function))


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
def _compiled(function: FunctionType) -> CodeType:
    tree = _Preempting().visit(ast.parse(_source(function)))
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    ast.fix_missing_locations(tree)
    module = compile(tree, function.__code__.co_filename, "exec")
    return next(each for each in module.co_consts if isinstance(each, CodeType))


def preempt_or_delay(world: World) -> None:
    """Perhaps let another thread run; the main thread may have to wait for its turn."""
    world.preempt()
    thread = world.current
    if thread is None or thread.name != "main" or not world.chance("late main thread"):
        return
    thread.is_late = True
    world.block(world.between(0.001, 0.2), is_lock=True)
    thread.is_late = False


def functions(owner: type) -> Sequence[FunctionType]:
    """Return the methods of a class that can be recompiled: those that are not bound to its scope."""
    found = [each for each in vars(owner).values() if isinstance(each, FunctionType)]
    return [each for each in found if not each.__code__.co_freevars]


@contextmanager
def preemptible(world: World, found: Sequence[FunctionType]) -> Iterator[None]:
    """Let the threads of *world* be pre-empted before each statement of the functions."""
    preempt = partial(preempt_or_delay, world)
    before = [(each, each.__code__) for each in found]
    spaces: list[dict[str, Any]] = [each.__globals__ for each in found]
    try:
        for each in found:
            each.__globals__[_NAME] = preempt
            each.__code__ = _compiled(each)
        yield
    finally:
        for each, code in before:
            each.__code__ = code
        for space in spaces:
            space.pop(_NAME, None)
