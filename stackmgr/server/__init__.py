"""The HTTP server: the gunicorn worker class that serves the application.

One thread, the main one, does all of it.

- `protocol` is HTTP/1.1 without a socket: bytes in, requests out, responses back.  It has the table of the
  states of a connection and of what leads from one to the next; `request`, `body` and `response` are the
  grammar.
- `connection` is the socket of one client, `connections` which of them wait, for what and until when,
  `listeners` where they come from.
- `queue` decides which complete requests run, `handler` runs the application.
- `loop` has the turns of the thread, `worker` is what gunicorn sees of it.  `master` keeps one failure from
  ending the service.
"""
