-- who: read what Redis has for one lock, for people. It changes nothing.
--
-- KEYS[1]  the lock
-- ARGV[1]  the queue of the lock, a ZSET: see queue.lua
-- ARGV[2]  at most so many owners and so many tickets are returned
-- ARGV[3]  the hosts that wait for the semaphore of this name, a ZSET; ARGV[4] what they want, a HASH: see permits.lua
--
-- Returns a list: what the key is, "free", "lock", "permits", "read_write" or "other"; a description, the mode
-- of a read-write lock, or ""; PTTL; how many owners follow; how many tickets the queue has, -1:
-- this user may not use the queue; the permits of all hosts; the largest capacity that a ticket names;
-- then for each owner its field, and its entries or permits; then for each
-- ticket its field, for how long it has been in the queue, ms, and its permits.
-- Or the error of Redis.
--
-- The queues are no keys of the script, so that a user who may not use them may use the lock.

local lock, queue, most, wanted, wants = KEYS[1], ARGV[1], ARGV[2] + 0, ARGV[3], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The fields of a hash that has more are not listed: a script that reads them takes long. It is no
-- lock, or a read-write lock with many readers, or a semaphore of many hosts.
local listed = 256

local kind, what, owners, permits, capacity = 'lock', '', {}, 0, 0
local fields = redis.pcall('HLEN', lock)
if type(fields) == 'table' then
  if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  kind, what = 'other', 'a key of type ' .. (redis.pcall('TYPE', lock).ok or 'unknown')
elseif fields == 0 then
  kind = 'free'
else
  local mode = redis.call('HGET', lock, 'mode')
  local held = string.match(mode or '', '^permits (%d+) %d+ %d+ %d+$')
  if held then
    kind, permits = 'permits', fields <= listed and 0 or held + 0
    for _, field in ipairs(fields <= listed and redis.call('HKEYS', lock) or {}) do
      local number, has, expiry = string.match(redis.call('HGET', lock, field), '^(%d+) (%d+) (%d+)$')
      if number and expiry * 1000 > now then -- otherwise it is free again
        permits = permits + has
        if #owners < 2 * most then
          owners[#owners + 1] = string.sub(field .. ':' .. number, 1, 256)
          owners[#owners + 1] = string.sub(has, 1, 32)
        end
      end
    end
    fields = 0
  end
  if mode == 'read' or mode == 'write' then kind, what = 'read_write', mode end
  for _, field in ipairs(fields > 0 and fields <= listed and redis.call('HKEYS', lock) or {}) do
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

if kind == 'permits' or kind == 'free' and redis.pcall('TYPE', wanted).ok == 'zset' then queue = wanted end
local queued = redis.pcall('ZCARD', queue)
local tickets = {}
if type(queued) == 'table' then
  queued = -1
elseif queued > 0 then
  tickets = redis.call('ZRANGE', queue, '0', string.format('%.0f', most - 1), 'WITHSCORES')
end

local places = {}
for i = 1, #tickets, 2 do
  local ticket, wish = tickets[i], 0
  if queue == wanted then
    local place = redis.pcall('HGET', wants, ticket)
    local number, some, of = string.match(type(place) == 'string' and place or '', '^(%d+) (%d+) (%d+) ')
    if number then ticket, wish, capacity = ticket .. ':' .. number, some + 0, math.max(capacity, of) end
  end
  places[#places + 1] = string.sub(ticket, 1, 256)
  places[#places + 1] = math.max(0, math.floor((now - tickets[i + 1]) / 1000))
  places[#places + 1] = wish
end

local result = {kind, what, redis.call('PTTL', lock), #owners / 2, queued, permits, capacity}
for _, owner in ipairs(owners) do result[#result + 1] = owner end
for _, place in ipairs(places) do result[#result + 1] = place end
return result
