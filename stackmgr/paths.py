"""Where the data directories are: inside the installed package, or beside it in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
DEFAULT_WHITELIST = _PACKAGE / "tokens.json"


def directory(name: str) -> Path:
    """Return the directory `sql`, `schemas` or `deploy`.

    A wheel has them inside the package; a checkout, also an editable one, at the top level.
    """
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def schema_version() -> int:
    """Return the version of the newest migration: the schema that the service requires."""
    return max(int(path.name[:4]) for path in (directory("sql") / "migrations").glob("*.sql"))
