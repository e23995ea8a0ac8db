-- What wrk sends: requests picked at random from those prepared in requests.py.
-- wrk ... -- REQUESTS NONCE PAUSE CLIENTS: the prepared requests, what makes this run's keys its own, for how
-- many milliseconds on average a client pauses before each request (0: not at all), and the number of clients.
local requests, nonce
local count = 0

local function pauses(mean, clients)
   local begun = 0
   return function()
      if begun == clients then return math.random(0, 2 * mean) end
      -- The rest of a pause that has begun before: the rate is the same at the beginning as later.
      begun = begun + 1
      return math.floor(2 * mean * (1 - math.sqrt(math.random())))
   end
end

function init(args)
   requests, nonce = dofile(args[1]), args[2]
   math.randomseed(tonumber(nonce, 16) % 2147483647)
   -- wrk calls this function where there is one.
   if tonumber(args[3]) > 0 then delay = pauses(tonumber(args[3]), tonumber(args[4])) end
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
