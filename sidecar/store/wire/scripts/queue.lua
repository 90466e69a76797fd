-- queue: the tickets of a lock between sidecars.
--
-- The queue of a lock is a ZSET, locksidecar_queue:{lock}, or if the lock's key has a brace,
-- locksidecar_queue::lock. Its members are tickets: the owner field "<uuid>:<ticket>" that the lock
-- gets if it passes to that ticket. Its scores are Redis's clock when they came, µs. A HASH,
-- locksidecar_signs:…, has for a uuid Redis's clock when that sidecar last asked again with a
-- ticket that stood, s. They are no KEYS, so that a user who may not use them may use the locks: to
-- such a user each queue is empty, and no ticket stands.
--
-- Redis pays in each run for each function that a script defines, and most locks have no queue. So
-- these are in a function, define_queues, with what take.lua and drop.lua have above a line of their
-- own: see script_text.go.

local words = {}
for word in string.gmatch(waits, '%d+') do words[#words + 1] = word end
-- The numbers of an operation in waits: wait, ticket, time.
local function words_of(op)
  return words[3 * op - 2] or '0', words[3 * op - 1] or '0', words[3 * op] or '0'
end

-- Has an operation name this ticket from now on.
local function set_ticket(op, ticket) words[3 * op - 1] = ticket end

-- Redis's clock, but later than each ticket of another sidecar, µs: the clock may have been set
-- back, and a newcomer never stands before a ticket that came earlier.
local function arrival_at(queue)
  local last = ask('ZRANGE', queue, '-1', '-1', 'WITHSCORES')
  local after = tonumber(last[2]) or 0
  if last[1] and string.sub(last[1], 1, #prefix) ~= prefix then after = after + 1 end
  return math.min(math.max(now(), after), 2 ^ 53)
end

local function queue_of(lock)
  if string.find(lock, '{', 1, true) then return 'locksidecar_queue::' .. lock end
  return 'locksidecar_queue:{' .. lock .. '}'
end

-- How many tickets wait.
local function count(queue)
  local tickets = ask('ZCARD', queue)
  return type(tickets) == 'number' and tickets or 0
end

local function signs_of(queue) return 'locksidecar_signs:' .. string.sub(queue, #'locksidecar_queue:' + 1) end

-- Notes that this sidecar has asked.
local function sign(queue)
  local signs = signs_of(queue)
  local signed = write('HSET', signs, string.sub(prefix, 1, -2), string.format('%d', math.floor(now() / 1000000)))
  if type(signed) == 'number' then ask('PEXPIRE', signs, 'policy.queue_expiry_ms') end
end

-- Whether the sidecar of an owner field receives messages, as far as this user may know.
local function has_receiver(field)
  if not string.find(field, '^:%d+$', 37) then return false end
  local _, n = count_subscribers('redisson_lock__channel:{locksidecar}:' .. string.sub(field, 1, 36), 'NUMSUB')
  return n > 0
end

-- Puts a ticket into the queue for a take, with the number num, unless the given one stands there.
-- Returns the rank and the number of the one that stands, true if it was the first before, and when
-- a request arrives that comes with this take, µs; or nothing: none stands.
local function enqueue(op, queue, num, ticket)
  local wait, _, time = words_of(op)
  local arrives = arrival_at(queue)
  local arrived = wait == 'wait.arrived' and string.format('%.0f', math.min(time, arrives))
  if ticket ~= '0' then
    local rank = ask('ZRANK', queue, prefix .. ticket)
    if type(rank) == 'number' then
      -- The expiry first: after it this script may write, and the others need memory.
      write('PEXPIRE', queue, 'policy.queue_expiry_ms')
      sign(queue)
      local was_first = rank == 0
      if arrived then
        write('ZADD', queue, arrived, prefix .. ticket)
        rank = ask('ZRANK', queue, prefix .. ticket)
      end
      return rank, ticket, was_first, arrives
    end
  end
  local added = write('ZADD', queue, arrived or string.format('%.0f', arrives), prefix .. num)
  if type(added) == 'table' then return end
  ask('PEXPIRE', queue, 'policy.queue_expiry_ms')
  if not arrived then return count(queue) - 1, num, false, arrives end
  sign(queue) -- without it, the ticket would be as old as its request
  return ask('ZRANK', queue, prefix .. num), num, false, arrives
end

-- Offers a lock to the tickets of its queue in their order, until a sidecar receives the
-- message. Returns that ticket, and how many wait behind it; or nil. These are removed:
--   a ticket whose sidecar does not receive the message;
--   a ticket whose sidecar has not asked for too long, with its sign; that receives "requeue";
--   a ticket of this sidecar up to hold num: it was given up.
--
-- pause: the lock is free for so many ms, and the ticket keeps its place.
--
-- given: the lock passes to the ticket. It has old, the key's field, nil if there is no
-- key, and last, lease, passed and more, which are parts of the message; and mine, a ticket
-- of this sidecar that may get the lock, and no message. If no ticket gets it, the key is
-- deleted.
local function offer(lock, queue, num, pause, given)
  num = num + 0
  local old, mine = given and given.old, given and given.mine
  for _ = 1, policy.max_offers do
    local first = pause and ask('ZRANGE', queue, '0', '0', 'WITHSCORES') or write('ZPOPMIN', queue)
    local field, seen = first[1], first[2]
    if not field then break end
    local ticket = string.match(field, '^:(%d+)$', 37)
    local own = ticket and string.sub(field, 1, #prefix) == prefix
    local is_old = false
    if ticket and not own and now() - seen > policy.max_silence_us then
      local sign = ask('HGET', signs_of(queue), string.sub(field, 1, 36))
      is_old = now() - (tonumber(sign) or 0) * 1000000 > policy.max_silence_us
    end
    if not ticket or own and ticket ~= mine and ticket + 0 <= num then
      -- No ticket, or one that was given up.
    elseif is_old then
      write('HDEL', signs_of(queue), string.sub(field, 1, 36))
      send(field, 'requeue', string.sub(field, 15, 15) == '8' and ticket .. ' ' .. lock or lock)
    elseif pause then
      if send(field, 'free', pause .. ' ' .. lock) > 0 then return field end
    else
      redis.call('HSET', lock, field, '1')
      if old then redis.call('HDEL', lock, old) else redis.call('PEXPIRE', lock, given.lease) end
      old = field
      local waiting = count(queue) + given.more
      if own and ticket == mine then return field, waiting end
      local tokens = string.sub(field, 15, 15) == '8' and 'policy.passed_tokens' or 'policy.passed_tokens_old'
      local message = string.format('%s %.0f %s %s %d %d ', ticket, given.last, tokens, given.lease, waiting, given.passed)
      if send(field, 'transfer', message .. lock) > 0 then return field, waiting end
    end
    if pause then write('ZREM', queue, field) end
  end
  if old then ask('DEL', lock) end
end

-- A lock was found to have another owner's field. If that is a foreign client, it passes the lock to
-- no ticket: the first one has to ask again, because it may not know that it is the first, or
-- that the holder is a foreign client.
local function notify_first(lock, other, num)
  if not has_receiver(other) then offer(lock, queue_of(lock), num, 0) end
end

-- Passes a lock on, see offer. Returns the ticket that has it, how many wait, the last
-- token drawn, and true if there was no counter; or nil; or nil and the status of a refused
-- operation, after which nothing was changed but the lease.
local function pass(lock, counter, queue, num, n, given)
  -- The expiry first: see take.
  local expires = ask('PEXPIRE', lock, given.lease)
  if type(expires) == 'table' then return nil, {code.refused, expires.err} end
  local last, made = draw(counter, n)
  if not last then return nil, made end
  given.last = last
  local field, waiting = offer(lock, queue, num, nil, given)
  return field, waiting, last, made
end
