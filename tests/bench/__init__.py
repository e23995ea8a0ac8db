"""The benchmark: how fast the service is, beside what PostgreSQL and Falcon alone could do on this machine.

What is compared is measured in turns, round by round, so that whatever else the machine does falls on all
alike; a number stands beside a number of the same round, and what is reported are medians over the rounds.
Load, service and PostgreSQL share the machine: ratios are worth quoting, absolute figures are not.

- throughput: each scenario over kept connections, each of which sends its next request at the last response.
- latency: `get` at several numbers of connections, kept and new for each request.  A time counts from the
  moment a request is written on its connection; a client that waits sends nothing meanwhile, so that these
  are the latencies of so many clients, not those of a given rate.
- overload: 512 clients that pause between a response and their next request, so that with immediate responses
  they would send twice the rate that the service has just been measured to serve.  At most 512 requests are
  open at once: latency settles where both rates are equal, as behind a proxy with bounded connections.
- slices: the longest processor time for which one request, or one step of it, has kept the request thread of
  a worker from all others, in each scenario.  The service runs with a clock at every switch of its greenlets.

The ceilings: `pgbench` runs the statements of sql/, the key's verification and the operation's, prepared and
with the settings and the kind of connection of the service; the bare Falcon returns 600 constant bytes.
"""
