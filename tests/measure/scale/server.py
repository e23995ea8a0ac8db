"""The PostgreSQL that holds the loaded databases."""

from pathlib import Path
from typing import Any

from stackmgr.dev.embedded_postgres import EmbeddedPostgres

SETTINGS = {
    "shared_buffers": "2GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "maintenance_work_mem": "1GB",
    "autovacuum": "off",
    "track_io_timing": "on",
}


class ScaleServer(EmbeddedPostgres):
    """An embedded server with a production's buffers, which keeps its data in *folder*."""

    def settings(self) -> dict[str, Any]:
        return super().settings() | SETTINGS


def database_name(stacks: int) -> str:
    """Return the name of the database that holds so many stacks."""
    return f"stackmgr_{stacks}"


def open_server(folder: Path) -> ScaleServer:
    folder.mkdir(parents=True, exist_ok=True)
    return ScaleServer(folder)
