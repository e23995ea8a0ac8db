"""A service that is told to stop answers everything that was sent to it."""

import http.client
import signal
import threading

from tests.server import running_service


def test_no_connection_that_was_made_goes_without_an_answer(database_url):
    broken: list[Exception] = []

    def call(port: int) -> None:
        """Ask again and again, on a new connection each time, until there is nobody to connect to."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.connect()
            except OSError:
                return
            try:
                connection.request("GET", "/")
                assert connection.getresponse().status == 404
            except (OSError, http.client.HTTPException) as ex:
                broken.append(ex)
            finally:
                connection.close()

    with running_service(database_url, env={"WEB_CONCURRENCY": "2"}) as service:
        callers = [threading.Thread(target=call, args=(service.port,)) for _ in range(6)]
        for caller in callers:
            caller.start()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        for caller in callers:
            caller.join()
    assert broken == []
