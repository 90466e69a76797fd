-- take: make a lock ours, or say whose it is.
--
-- KEYS[1]  the lock: HASH {owner field: entries}
-- KEYS[2]  its token counter: STRING
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  hold number, decimal, below 2^53
-- ARGV[3]  entries of the hold
-- ARGV[4]  lease, ms
-- ARGV[5]  how many tokens to draw; 0 draws none
-- ARGV[6]  floor: tokens of this connection are above it; µs
-- ARGV[7]  channel of the lock
-- ARGV[8]  "1": only move a lock that is ours already, never take a free one
--
-- Returns {1, last token drawn or 0, listeners or -1}  it is ours
--         {0}                                          there is no such key (ARGV[8])
--         {2, PTTL, owner field or a description, listeners or -1}
--                                              it is somebody else's; nothing was changed
-- or the error of Redis with its own code; the lock is then as it was, but for the
-- lease of one that is ours already.
--
-- What may fail (wrong type, memory, a read-only replica, permissions) is called
-- by pcall and before the lock is written. A plain call would lose the code of
-- the error in Redis 6.2.

local lock, counter = KEYS[1], KEYS[2]
local prefix, num, lease = ARGV[1], ARGV[2], ARGV[4]
local week = 7 * 24 * 3600 * 1000
local refresh = 6.5 * 24 * 3600 * 1000 -- half a day of use between two refreshes of the expiry

local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[7])
local listeners = heard.err and -1 or heard[2]

-- A plain lock has one field. More are another structure under our name.
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then return fields end

local old
if fields == 0 then
  if ARGV[8] == '1' then return {0} end
elseif fields == 1 then
  old = redis.call('HKEYS', lock)[1]
  local n = string.sub(old, 1, #prefix) == prefix and string.match(old, '^%d+$', #prefix + 1)
  if not n or tonumber(n) > tonumber(num) then
    return {2, redis.call('PTTL', lock), string.sub(old, 1, 256), listeners}
  end
else
  local what = 'a hash with ' .. fields .. ' fields'
  local mode = redis.call('HGET', lock, 'mode')
  if mode then what = 'a read-write lock in mode ' .. string.sub(mode, 1, 16) end
  return {2, redis.call('PTTL', lock), what, listeners}
end

-- Before the rest. Redis grants it when it is out of memory, too, and lets a script
-- that has begun to write go on: what is ours can be kept and passed on.
if old then
  local expires = redis.pcall('PEXPIRE', lock, lease)
  if type(expires) == 'table' then return expires end
end

-- Tokens. A counter that is new or lags behind the floor may have lost what it
-- once was: deleted, flushed, or read from a replica that is behind. It goes on
-- from the time in µs. That is above every token ever drawn, because a counter
-- starts at the time and is drawn from more slowly than once per µs: a round trip
-- takes longer than the tokens it reserves.
local token = 0
local draw = tonumber(ARGV[5])
if draw > 0 then
  token = redis.pcall('INCRBY', counter, ARGV[5])
  if type(token) == 'table' then return token end
  if token >= 2 ^ 53 then
    return redis.error_reply('ERR token counter ' .. counter .. ' is above 2^53: delete it')
  end
  if token - draw < tonumber(ARGV[6]) then
    local time = redis.call('TIME')
    local fresh = token == draw
    token = math.max(time[1] * 1000000 + time[2], tonumber(ARGV[6])) + draw
    local text = string.format('%.0f', token)
    if fresh then
      redis.call('SET', counter, text, 'PX', week)
    else
      redis.call('SET', counter, text, 'KEEPTTL')
    end
  else
    -- A counter without an expiry was made by somebody who wants it to stay.
    local left = redis.call('PTTL', counter)
    if left >= 0 and left < refresh then redis.call('PEXPIRE', counter, week) end
  end
end

local field = prefix .. num
local written = redis.pcall('HSET', lock, field, ARGV[3])
if type(written) == 'table' then return written end
if not old then
  local expires = redis.pcall('PEXPIRE', lock, lease)
  if type(expires) == 'table' then
    -- PEXPIRE alone is not permitted. The lock must not stay for ever.
    redis.call('DEL', lock)
    return expires
  end
elseif old ~= field then
  redis.call('HDEL', lock, old)
end

return {1, token, listeners}
