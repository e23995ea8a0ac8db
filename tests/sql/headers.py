"""The comment at the head of each SQL file, taken apart."""

import re
from dataclasses import dataclass
from pathlib import Path

from stackmgr import paths

FIELDS = ("params", "returns", "index", "locks", "called by", "why")
_FIELD = re.compile(rf"({'|'.join(FIELDS)}): +(.*)")
_INDEX = re.compile(r"(\w+(?: or \w+)*)( \(arbiter\))?")
_PARAMETER = re.compile(r"(\w+) ([\w.]+(?:\[\])?)( or null)?")


@dataclass(frozen=True)
class SqlFile:
    """One file: `title` and `purpose` are its first sentence, `fields` what follows, `body` the rest."""

    name: str
    text: str
    title: str
    purpose: str
    fields: dict[str, str]
    body: str

    def is_complete(self) -> bool:
        """Whether the header has the name of the file, a sentence and each field, in order."""
        names = [name for name in FIELDS if name != "why" or name in self.fields]
        return (
            self.title == self.name
            and self.purpose.endswith(".")
            and list(self.fields) == names
            and all(self.fields.values())
        )

    def listed(self, field: str) -> list[str]:
        text = self.fields[field]
        return [] if text == "none" or text.startswith("none (") else text.split(", ")

    def parameters(self) -> dict[str, str]:
        found = (_PARAMETER.fullmatch(item) for item in self.listed("params"))
        return {match[1]: match[2] for match in found if match}

    def columns(self) -> list[str]:
        match = re.search(r"\(([^)]+)\)", self.fields["returns"])
        return match[1].split(", ") if match else []

    def indexes(self) -> list[tuple[str, bool]]:
        """Return the indexes, or `this or that`, and of each whether it only arbitrates an ON CONFLICT."""
        found = (_INDEX.fullmatch(item) for item in self.listed("index"))
        return [(match[1], match[2] is not None) for match in found if match]


def _read(path: Path) -> SqlFile:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    length = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    fields = {"": ""}
    for line in lines[:length]:
        match = _FIELD.fullmatch(line[3:])
        if match:
            fields[match[1]] = match[2]
        else:
            last = list(fields)[-1]
            fields[last] = f"{fields[last]} {line[2:].strip()}".strip()
    title, _, purpose = fields.pop("").partition(": ")
    return SqlFile(path.stem, text, title, purpose, fields, "\n".join(lines[length:]))


def read_all(folder: Path) -> dict[str, SqlFile]:
    return {path.stem: _read(path) for path in sorted(folder.glob("*.sql"))}


SQL_FILES = read_all(paths.directory("sql"))
_CITUS = "".join(path.read_text() for path in sorted(paths.directory("sql").glob("migrations/*_citus_*.sql")))
CITUS_FUNCTIONS: list[str] = re.findall(r"(?ms)^CREATE FUNCTION .*?^\$\$;$", _CITUS)
