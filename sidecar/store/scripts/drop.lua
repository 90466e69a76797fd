-- drop: give a lock back and wake those who wait for it.
--
-- KEYS[1]  the lock: HASH {owner field: entries}
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  hold number, decimal, below 2^53: this hold or an earlier one of ours
-- ARGV[3]  channel of the lock
--
-- Returns 1   deleted, or gone before; published
--         2   the same; this user may not publish on the channel
--         0   the key has somebody else's field, or a later one of ours
-- or the error of Redis with its own code; the lock is then as it was.

local lock, prefix, num = KEYS[1], ARGV[1], ARGV[2]

-- The hold number in an owner field of ours, or nil.
local function ours(field)
  if string.sub(field, 1, #prefix) == prefix then
    local digits = string.match(field, '^%d+$', #prefix + 1)
    return digits and tonumber(digits)
  end
end

local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then return fields end

-- The only payload that Redisson takes for "unlocked".
local function wake()
  local heard = redis.pcall('PUBLISH', ARGV[3], '0')
  if type(heard) == 'table' then return 2 end
  return 1
end

-- It may have expired a moment ago, which nobody was told of.
if fields == 0 then return wake() end
if fields > 1 then
  -- Somebody built another structure around our field: leave theirs alone.
  redis.call('HDEL', lock, prefix .. num)
  return 0
end

local n = ours(redis.call('HKEYS', lock)[1])
if not n or n > tonumber(num) then return 0 end

local gone = redis.pcall('DEL', lock)
if type(gone) == 'table' then return gone end
return wake()
