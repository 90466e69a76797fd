-- who: read what Redis has for one lock, for people. It changes nothing.
--
-- KEYS[1]  the lock
-- ARGV[1]  the queue of the lock, a ZSET: see queue.lua
-- ARGV[2]  at most so many owners and so many tickets are returned
--
-- Returns a list: what the key is, "free", "lock", "read_write" or "other"; a description, the mode
-- of a read-write lock, or ""; PTTL; how many owners follow; how many tickets the queue has, -1:
-- this user may not use the queue; then for each owner its field and its entries; then for each
-- ticket its field, and for how long it has been in the queue, ms.
-- Or the error of Redis.
--
-- The queue is no key of the script, so that a user who may not use it may use the lock.

local lock, queue, most = KEYS[1], ARGV[1], ARGV[2] + 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The fields of a hash that has more are not listed: a script that reads them takes long. It is no
-- lock, or a read-write lock with many readers.
local listed = 256

local kind, what, owners = 'lock', '', {}
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then
  if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  kind, what = 'other', 'a key of type ' .. (redis.pcall('TYPE', lock).ok or 'unknown')
elseif fields == 0 then
  kind = 'free'
else
  local mode = redis.call('HGET', lock, 'mode')
  if mode == 'read' or mode == 'write' then kind, what = 'read_write', mode end
  for _, field in ipairs(fields <= listed and redis.call('HKEYS', lock) or {}) do
    if not string.find(field .. ':', ':%-?%d+:') then
      if kind == 'lock' or field ~= 'mode' then kind = 'other' end
    elseif #owners < 2 * most then
      owners[#owners + 1] = string.sub(field, 1, 256)
      owners[#owners + 1] = string.sub(redis.call('HGET', lock, field) or '', 1, 32)
    end
  end
  if kind == 'lock' and fields ~= 1 then kind = 'other' end
  if kind == 'other' then what, owners = 'a hash with ' .. fields .. ' field' .. (fields == 1 and '' or 's'), {} end
end

local queued = redis.pcall('ZCARD', queue)
local tickets = {}
if type(queued) == 'table' then
  queued = -1
elseif queued > 0 then
  tickets = redis.call('ZRANGE', queue, '0', string.format('%.0f', most - 1), 'WITHSCORES')
end

local result = {kind, what, redis.call('PTTL', lock), #owners / 2, queued}
for _, owner in ipairs(owners) do result[#result + 1] = owner end
for i = 1, #tickets, 2 do
  result[#result + 1] = string.sub(tickets[i], 1, 256)
  result[#result + 1] = math.max(0, math.floor((now - tickets[i + 1]) / 1000))
end
return result
