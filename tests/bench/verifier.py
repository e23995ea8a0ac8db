"""A remote verifier: a server that speaks Unkey's protocol, and responds to each verification after a delay.

It runs in a process of its own, and accepts the keys of the managers it was given.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf

from stackmgr.access import api_keys
from tests.bench import delay
from tests.bench.requests import Manager


def seconds(text: str) -> float:
    """Return the delay that `20ms` or `hang` stands for, in seconds.  Raises ValueError."""
    return inf if text == "hang" else delay.seconds(text)


@contextmanager
def delayed(managers: list[Manager], wait: float) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the environment of a service that uses the server, and the server's pid."""
    command = [sys.executable, "-m", "tests.bench.verifier", str(wait)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(
                json.dumps({each.key: each.external_id for each in managers}), file=process.stdin, flush=True
            )
            env = {
                "STACKMGR_VERIFIER": "unkey",
                "STACKMGR_UNKEY_URL": f"http://127.0.0.1:{int(process.stdout.readline())}",
                "STACKMGR_UNKEY_ROOT_KEY": "root",
            }
            yield env, process.pid
        finally:
            process.stdin.close()


def _response(key: str, external_ids: Mapping[str, str]) -> bytes:
    external_id = external_ids.get(key)
    code = "VALID" if external_id else "NOT_FOUND"
    data: dict[str, object] = {"valid": code == "VALID", "code": code}
    if external_id:
        # The database verifier has bound the managers of the seed, and this one must agree with it.
        data["identity"] = {"id": api_keys.identity_of(external_id), "externalId": external_id}
    body = json.dumps({"meta": {"requestId": "req"}, "data": data}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def _serve(
    external_ids: Mapping[str, str], wait: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            key = json.loads(await reader.readexactly(length))["key"]
            await asyncio.sleep(min(wait, 3600))
            writer.write(_response(key, external_ids))
    writer.close()


async def main() -> None:
    """Print the port, and serve until standard input ends."""
    external_ids = json.loads(sys.stdin.readline())
    serve = partial(_serve, external_ids, float(sys.argv[1]))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # whatever is still waiting


if __name__ == "__main__":
    asyncio.run(main())
