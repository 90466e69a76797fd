-- arrive: say when requests for locks arrived, and how long others have waited for them.
--
-- KEYS     the locks
--
-- Returns for each key the status; it changes nothing:
--   {code.arrived, when a request arrives now: Redis's clock, but later than each ticket in the
--     queue of the lock, µs; when the request of the first ticket in the queue of the lock
--     arrived, µs, 0: there is none, or this user may not use the queue}
--   {code.refused, "CODE text"}: the error of a replica that has lost its master

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local statuses = {}
for i, lock in ipairs(KEYS) do
  local queue = 'locksidecar_queue:{' .. lock .. '}'
  if string.find(lock, '{', 1, true) then queue = 'locksidecar_queue::' .. lock end
  local first = redis.pcall('ZRANGE', queue, '0', '0', 'WITHSCORES')
  if first.err and string.find(first.err, 'MASTERDOWN', 1, true) then
    statuses[i] = {code.refused, first.err} -- a replica does not know the queue
  else
    local arrives = now
    if first[2] then -- the clock may have been set back since
      local last = redis.pcall('ZRANGE', queue, '-1', '-1', 'WITHSCORES')
      arrives = math.min(math.max(now, last[2] + 1), 2 ^ 53)
    end
    statuses[i] = {code.arrived, arrives, math.max(0, math.min(first[2] or 0, 2 ^ 53))}
  end
end
return statuses
