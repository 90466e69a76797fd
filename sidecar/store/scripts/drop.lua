-- drop: give a lock back and wake those who wait for it.
--
-- KEYS[1]  the lock: HASH {owner field: entries}
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  hold number, decimal, below 2^53: this hold or an earlier one of ours
-- ARGV[3]  channel of the lock
--
-- Returns 1   our field is gone, or was before; published
--         2   the same; this user may not publish on the channel
--         0   the key has somebody else's field, or a later one of ours
-- or the error of Redis with its own code; the lock is then as it was.

local lock, prefix, num = KEYS[1], ARGV[1], ARGV[2]

-- A key that has this field and no other is gone with it. Should somebody have built
-- another structure around our field, theirs is left, and who wakes finds it.
local gone = redis.pcall('HDEL', lock, prefix .. num)
if type(gone) == 'table' then return gone end
if gone == 0 then
  local fields = redis.call('HLEN', lock)
  if fields > 1 then return 0 end
  -- No field at all: it may have expired a moment ago, which nobody was told of.
  if fields == 1 then
    local field = redis.call('HKEYS', lock)[1]
    local n = string.sub(field, 1, #prefix) == prefix and string.match(field, '^%d+$', #prefix + 1)
    if not n or tonumber(n) > tonumber(num) then return 0 end
    local deleted = redis.pcall('DEL', lock)
    if type(deleted) == 'table' then return deleted end
  end
end

-- The only payload that Redisson takes for "unlocked".
local heard = redis.pcall('PUBLISH', ARGV[3], '0')
if type(heard) == 'table' then return 2 end
return 1
