-- renew: renew or check many locks, each independently of the others.
--
-- KEYS     the locks
-- ARGV[1]  prefix of this sidecar's owner fields
-- ARGV[2]  lease, ms; 0: check only, and leave the expiry as it is
-- ARGV[3]  entries of the holds
-- ARGV[4]  in how many of the keys, from the first, to look for fields of others beside ours.
--          A renewal of another key that has our field with these entries renews it, whatever
--          else is in it. Another program that builds a structure around our field is found
--          by the next run that looks.
-- ARGV[5…] for each key: hold number, decimal, below 2^53
--
-- Returns the number of keys if all of them are 0, and otherwise for each key the status:
--   0               ours: the field has this number and these entries; if renewed, the key has this lease
--   {code.differs}  ours, with other entries or a lower number: found by a check
--   {code.missing}  there is no such key
--   {code.held, PTTL, owner field or a description, subscribers.uncounted, 0}
--                   it is not ours; nothing was changed
--   {code.refused, "CODE text"}
--                   the error of Redis for this key alone; at most its lease was changed
--
-- With no keys the script changes nothing: it shows that this user may run scripts.

local lease, entries, looks = ARGV[2], ARGV[3], (ARGV[4] or 0) + 0
local renew = lease ~= '0'

-- Like redis.call, but the error keeps its code in every version of Redis.
local function call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end

-- The slow path: the lock is not exactly as this sidecar left it.
local function reconcile(lock, num)
  local field = prefix .. num
  local have = redis.pcall('HGET', lock, field)
  local fields = type(have) == 'table' and have or call('HLEN', lock)
  if fields == 0 then return {code.missing} end
  local old, other = field, nil
  if not have or fields ~= 1 then
    old, other = owner(lock, fields, num)
    if not old then
      if not other then return {code.missing} end
      return {code.held, call('PTTL', lock), other, subscribers.uncounted, 0}
    end
  end
  if not renew then return have == entries and 0 or {code.differs} end
  -- The expiry first: Redis permits PEXPIRE when it is out of memory, and once a script
  -- has written anything Redis no longer enforces maxmemory for it.
  call('PEXPIRE', lock, lease)
  if have ~= entries then
    call('HSET', lock, field, entries)
    if old ~= field then call('HDEL', lock, old) end
  end
  return 0
end

local ask, numbers = redis.pcall, ARGV
local expire, expires = 'PEXPIRE', lease
if renew and #KEYS >= 16 then
  -- Redis makes a PEXPIREAT of each PEXPIRE, for its replicas. A TIME for all is cheaper.
  local now = ask('TIME')
  if not now.err then
    expire, expires = 'PEXPIREAT', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + lease)
  end
end
local statuses
for i, lock in ipairs(KEYS) do
  local num, status = numbers[i + 4], 0
  -- The fast path, which nearly every lock takes: it is as this sidecar left it.
  if ask('HGET', lock, prefix .. num) ~= entries or i <= looks and ask('HLEN', lock) ~= 1 or renew and ask(expire, lock, expires) ~= 1 then
    local ok
    ok, status = pcall(reconcile, lock, num)
    if not ok then status = {code.refused, type(status) == 'table' and status.err or status} end
    if status == 0 then expire, expires = 'PEXPIRE', lease end -- this user may have no permission for PEXPIREAT
    if not statuses and status ~= 0 then
      statuses = {}
      for before = 1, i - 1 do statuses[before] = 0 end
    end
  end
  if statuses then statuses[i] = status end
end
return statuses or #KEYS
