"""The SQL files, each read once into a Statement.

The files name their parameters, `%(name)s::type`, as psycopg does; the server is sent `$1::type`.  The text
stays bytes, so that SQL put together at run time is an error of types before it is one of security.
"""

import re
from dataclasses import dataclass

from stackmgr import paths

_COMMENT = re.compile(rb"--[^\n]*\n")
_PARAMETER = re.compile(rb"%\((\w+)\)s")
_WRITE = re.compile(rb"\b(INSERT|UPDATE|DELETE)\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, free of comments; `parameters` are in the order of their numbers in `text`.

    `name` is the file's, and what the statement is prepared as; `writes` tells whether it changes anything.
    """

    name: str
    text: bytes
    parameters: tuple[str, ...]
    writes: bool


def load(name: str) -> Statement:
    """Return the statement of `sql/<name>.sql`."""
    text = _COMMENT.sub(b"", (paths.directory("sql") / f"{name}.sql").read_bytes()).strip()
    parameters = list(dict.fromkeys(found.decode("ascii") for found in _PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda match: b"$%d" % (parameters.index(match[1].decode("ascii")) + 1), text)
    return Statement(name=name, text=numbered, parameters=tuple(parameters), writes=bool(_WRITE.search(text)))
