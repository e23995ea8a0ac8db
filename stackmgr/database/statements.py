"""The SQL files, each read once into a Statement.

The files name their parameters, `%(name)s::type`, as psycopg does; the server is sent `$1::type`.
The text stays bytes: SQL put together at run time is an error of types.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stackmgr import paths

_COMMENT = re.compile(rb"--[^\n]*\n")
_PARAMETER = re.compile(rb"%\((\w+)\)s")
_FIRST_WORD = re.compile(rb"^\w+")
# The functions of sql/citus write.
_WRITE = re.compile(rb"\b(?:INSERT|UPDATE|DELETE|pg_logical_emit_message|(?:create|update)_stack\()")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement; `parameters` are in the order of their numbers in `text`.

    `name` is the file's, and the one comment in `text`, for pg_stat_statements and the server's
    log.  `writes` is whether its commit writes WAL.
    """

    name: str
    text: bytes
    parameters: tuple[str, ...]
    writes: bool

    @property
    def prepared_name(self) -> bytes:
        """The name to prepare it under: behind a pooler, releases may share a server session."""
        return f"{self.name}_{hashlib.sha256(self.text).hexdigest()[:8]}".encode("ascii")


def load(name: str, variant: str = "") -> Statement:
    """Return the statement of `sql/<name>.sql`, or of that file in the folder *variant*."""
    text = _COMMENT.sub(b"", (paths.directory("sql") / variant / f"{name}.sql").read_bytes()).strip()
    parameters = list(dict.fromkeys(found.decode("ascii") for found in _PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda match: b"$%d" % (parameters.index(match[1].decode("ascii")) + 1), text)
    # After the first word: from PostgreSQL 18 on, pg_stat_statements omits what precedes it.
    labelled = _FIRST_WORD.sub(lambda word: b"%s /* %s */" % (word[0], name.encode("ascii")), numbered)
    return Statement(name=name, text=labelled, parameters=tuple(parameters), writes=bool(_WRITE.search(text)))


def load_variant(variant: str) -> Mapping[str, Statement]:
    """Return the statements of `sql/<variant>`, by name; none if there is no such folder."""
    return {path.stem: load(path.stem, variant) for path in (paths.directory("sql") / variant).glob("*.sql")}
