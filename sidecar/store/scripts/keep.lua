-- keep: renew or check many locks, each on its own account.
--
-- KEYS     the locks: HASH {owner field: entries}
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  lease, ms; 0: check only, and leave the expiry as it is
-- ARGV[3]  entries of the holds
-- ARGV[4…] for each key: hold number, decimal, below 2^53
--
-- Returns for each key
--         1               ours: the field has this number and these entries; if renewed, the key this lease
--         2               ours, with other entries or a lower number: found by a check
--         0               there is no such key
--         {PTTL, owner field or a description}   it is not ours; nothing was changed
--         "CODE text"     the error of Redis for this key alone; at most its lease was changed
--
-- With no keys the script changes nothing: it shows that this user may run scripts.

local prefix, lease, entries = ARGV[1], ARGV[2], ARGV[3]
local renew = lease ~= '0'
local statuses = {}

-- Like redis.call, but the error keeps its code in every version of Redis.
local function call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end

-- A description of a key of another type, after a command for hashes failed with err.
local function describe(lock, err)
  if string.sub(err, 1, 9) ~= 'WRONGTYPE' then return nil end
  local kind = redis.pcall('TYPE', lock)
  return 'a key of type ' .. (kind.ok or 'unknown') .. ', which is not a lock'
end

-- The slow path: the lock is not exactly as this sidecar left it.
local function reconcile(lock, num)
  local field = prefix .. num
  local have = redis.pcall('HGET', lock, field)
  if type(have) == 'table' then
    local what = describe(lock, have.err)
    if what then return {call('PTTL', lock), what} end
    error(have)
  end
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
  if not renew then return have == entries and 1 or 2 end
  -- The expiry first: Redis permits PEXPIRE when it is out of memory, and permits
  -- everything to a script that has written something.
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
  -- The fast path, which nearly every lock takes: it is as this sidecar left it.
  if ask('HGET', lock, prefix .. num) == entries and ask('HLEN', lock) == 1 and (not renew or ask('PEXPIRE', lock, lease) == 1) then
    statuses[i] = 1
  else
    local ok, status = pcall(reconcile, lock, num)
    if not ok and type(status) == 'table' then status = status.err end
    statuses[i] = status
  end
end
return statuses
