"""Ranges of managers audited one after the other in this process, or several at a time in others."""

import multiprocessing
import signal
from collections.abc import Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait

from stackmgr.errors import CommandError
from stackmgr.operate.audit.ranges import Part, Range, Rules, audit_range
from stackmgr.operate.connection import ReaderConnection, reader_connection

# A part of a range, or None once the range is complete.
Result = tuple[Range, Part | None]


def in_this_process(
    connection: ReaderConnection, todo: Iterator[Range], rules: Rules
) -> Generator[Result, None, None]:
    """Audit *todo* on *connection*, in order."""
    for managers in todo:
        for part in audit_range(connection, managers, rules):
            yield managers, part
        yield managers, None


def in_processes(url: str, todo: Iterator[Range], rules: Rules, count: int) -> Generator[Result, None, None]:
    """Audit *todo* in *count* processes, each with a connection of its own.  Raises CommandError."""
    # Not by a fork, which would share the connection of this process.
    context = multiprocessing.get_context("spawn")
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # they inherit it; this process ends them
    processes = {}
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            processes[ours] = context.Process(target=_work, args=(theirs, url, rules), daemon=True)
            processes[ours].start()
            theirs.close()
        signal.signal(signal.SIGINT, handler)
        yield from _distribute(processes, todo)
    finally:
        signal.signal(signal.SIGINT, handler)
        for process in processes.values():
            process.terminate()
            process.join()


def _work(main: Connection, url: str, rules: Rules) -> None:
    """Audit the ranges that *main* sends until it closes its end, and send the parts of each, then None."""
    try:
        with reader_connection(url) as connection:
            while True:
                for part in audit_range(connection, main.recv(), rules):
                    main.send(part)
                main.send(None)
    except CommandError as ex:
        main.send(str(ex))
    except (EOFError, OSError):
        return  # the process that reads the results has ended


def _distribute(connections: Iterable[Connection], todo: Iterator[Range]) -> Iterator[Result]:
    busy: dict[Connection, Range] = {}
    idle = list(connections)
    while True:
        try:
            while idle and (managers := next(todo, None)) is not None:
                connection = idle.pop()
                connection.send(managers)
                busy[connection] = managers
            if not busy:
                return
            ready = wait(busy.keys())
            received = [(each, each.recv()) for each in busy if each in ready]
        except (EOFError, OSError) as ex:
            raise CommandError("a process of the audit was ended from outside") from ex
        for connection, message in received:
            if isinstance(message, str):
                raise CommandError(message)
            yield busy[connection], message
            if message is None:
                del busy[connection]
                idle.append(connection)
