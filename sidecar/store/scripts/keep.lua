-- keep: renew many locks, each on its own account.
--
-- KEYS     the locks: HASH {owner field: entries}
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  lease, ms
-- ARGV[3]  entries of the holds
-- ARGV[4…] for each key: hold number, decimal, below 2^53
--
-- Returns for each key
--         1               still ours: the field has this number and these entries, the key this lease
--         0               there is no such key
--         {PTTL, owner field or a description}   it is somebody else's; nothing was changed
--         "CODE text"     the error of Redis for this key alone; at most its lease was changed
--
-- With no keys it does nothing, which asks whether scripts may be run at all.

local prefix, lease, entries = ARGV[1], ARGV[2], ARGV[3]
local statuses = {}

-- Like redis.call, but the error keeps its code in every version of Redis.
local function call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end

-- What is not simply as it should be.
local function settle(lock, num)
  local field = prefix .. num
  local have = call('HGET', lock, field)
  local fields = call('HLEN', lock)
  if fields == 0 then return 0 end
  if fields > 1 then
    local what = 'a hash with ' .. fields .. ' fields'
    local mode = call('HGET', lock, 'mode')
    if mode then what = 'a read-write lock in mode ' .. string.sub(mode, 1, 16) end
    return {call('PTTL', lock), what}
  end
  local old = field
  if not have then
    old = call('HKEYS', lock)[1]
    local n = string.sub(old, 1, #prefix) == prefix and string.match(old, '^%d+$', #prefix + 1)
    if not n or tonumber(n) > tonumber(num) then
      return {call('PTTL', lock), string.sub(old, 1, 256)}
    end
  end
  -- Before the field. Redis grants it when it is out of memory, too, and lets a
  -- script that has begun to write go on.
  call('PEXPIRE', lock, lease)
  if have ~= entries then
    call('HSET', lock, field, entries)
    if old ~= field then call('HDEL', lock, old) end
  end
  return 1
end

local ask = redis.pcall
for i, lock in ipairs(KEYS) do
  local num = ARGV[i + 3]
  -- Nearly every lock is as we left it: that is what this script costs.
  if ask('HGET', lock, prefix .. num) == entries and ask('HLEN', lock) == 1 and ask('PEXPIRE', lock, lease) == 1 then
    statuses[i] = 1
  else
    local ok, status = pcall(settle, lock, num)
    if not ok and type(status) == 'table' then status = status.err end
    statuses[i] = status
  end
end
return statuses
