"""Record which statements a database runs."""


class Recorder:
    """An observer of a database that keeps the names of the statements run, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def statement(self, name: str, seconds: float) -> None:
        self.names.append(name)

    def acquired(self, seconds: float) -> None:
        """Connections are not counted."""

    def released(self) -> None:
        """Connections are not counted."""
