-- What wrk sends: requests picked at random from those prepared in requests.py.
-- wrk ... -- REQUESTS NONCE: the prepared requests, and what makes this run's keys its own.
local requests, nonce
local count = 0

function init(args)
   requests, nonce = dofile(args[1]), args[2]
   math.randomseed(tonumber(nonce, 16) % 2147483647)
end

function request()
   local prepared = requests[math.random(#requests)]
   if #prepared == 1 then return prepared[1] end
   count = count + 1
   return prepared[1] .. nonce .. "-" .. count .. prepared[2]
end

function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests":%d,"seconds":%.6f,"p50":%.3f,"p99":%.3f,"slowest":%.3f,"refused":%d,"broken":%d}\n',
      summary.requests, summary.duration / 1e6,
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3,
      errors.status, errors.connect + errors.read + errors.write + errors.timeout
   ))
end
