-- SPDX-License-Identifier: Apache-2.0
-- wrk: sends the bodies of a file in turn, and compares every verdict with the one in the request's UID.
local bodies, at = {}, 0
local threads = {}
sent, wrong, failed = 0, 0, 0

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  for line in io.lines(arguments[1]) do
    bodies[#bodies + 1] = wrk.format("POST", nil, {["Content-Type"] = "application/json"}, line)
  end
end

function request()
  at = at % #bodies + 1
  return bodies[at]
end

function response(status, headers, body)
  sent = sent + 1
  if status ~= 200 then
    failed = failed + 1
  else
    local expected = body:match('"uid":"%d+%-(%a+)"')
    if not expected or not body:find('"allowed":' .. expected, 1, true) then wrong = wrong + 1 end
  end
end

function done(summary, latency, requests)
  local all, bad, broken = 0, 0, 0
  for _, thread in ipairs(threads) do
    all = all + thread:get("sent")
    bad = bad + thread:get("wrong")
    broken = broken + thread:get("failed")
  end
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"seconds":%f,"p50_ms":%f,"p99_ms":%f,"compared":%d,"wrong":%d,"failed":%d,"broken":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    all, bad, broken, errors.connect + errors.read + errors.write + errors.timeout))
end
