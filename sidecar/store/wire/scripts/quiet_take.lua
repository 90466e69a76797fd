-- quiet_take: take one lock that is free and that no host waits for, with one entry and one token, in a
-- Cluster. There a script has locks of one slot, so most runs have one, and this one costs Redis half of
-- what take.lua does. Anything else is left to that: the answer is "busy" then, and nothing was changed, but
-- a token may have been drawn.
--
-- KEYS     the lock; its token counter; its queue
-- ARGV[1]  the owner field
-- ARGV[2]  lease, ms
-- ARGV[3]  floor: tokens of this connection are above it; µs
-- ARGV[4]  expiry of a counter after its last use, ms; 0: counters do not expire
--
-- Returns the token, or the status "busy".

local ask, lock, counter = redis.pcall, KEYS[1], KEYS[2]
local function take()
  if ask('EXISTS', lock, KEYS[3]) ~= 0 then return end
  local token = ask('INCRBY', counter, '1')
  if token == 1 then
    ask('DEL', counter) -- there was none: take.lua makes it
    return
  end
  if type(token) == 'table' or token <= ARGV[3] + 0 or token >= 2 ^ 53 then return end
  -- An expiry that an earlier daemon set is found by one draw of many.
  if ARGV[4] ~= '0' or token % 64 == 0 then
    local left = ask('PTTL', counter)
    if left ~= -1 and (type(left) == 'table' or ARGV[4] == '0' or left < ARGV[4] / 14 * 13) then return end
  end
  if ask('HSET', lock, ARGV[1], '1') ~= 1 then return end
  if ask('PEXPIRE', lock, ARGV[2]) == 1 then return token end
  -- Only PEXPIRE is not permitted. A lock without an expiry would never be free.
  redis.call('DEL', lock)
end
return take() or redis.status_reply('busy')
