-- What wrk sends: requests picked at random from those prepared in requests.py.
-- wrk ... -- REQUESTS NONCE THINK: the prepared requests, what makes this run's keys its own, and for how many
-- milliseconds on average a client is silent before each request (0: it asks again at once).
local requests, nonce, think
local count = 0

function init(args)
   requests, nonce, think = dofile(args[1]), args[2], tonumber(args[3])
   math.randomseed(tonumber(nonce, 16) % 2147483647)
   if think > 0 then
      -- Only a script that has this function is delayed.
      function delay() return math.random(0, 2 * think) end
   end
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
