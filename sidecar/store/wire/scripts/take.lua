-- take: set our field in the key of a lock, if the lock is free or ours.
--
-- take(op, lock, counter, num, entries, n, flags, free, passed_on) returns a status:
--   n                   a free lock is ours; n: the last token. The others are not 0 or true
--   {code.taken, the last token (0: none was drawn), 1 if there was no counter, how many wait, the
--     ticket whose number the field has (0: the hold number), how the subscribers were counted, n}
--   {code.missing}      there is no such key; of a take that only moves a lock
--   {code.held, PTTL, owner field or a description, how the subscribers were counted, n}
--                       it is not ours, nothing was changed, and no ticket stands
--   {code.queued, the same, rank of the ticket, ticket, when the request arrived, µs, recall.…}
--                       the same, and the ticket stands
--   {code.free, how the subscribers were counted, n}
--                       the drop before it left the lock free, and so does this; no ticket stands
--   {code.free_queued, the same, rank, ticket, when the request arrived, µs}
--   {code.not_a_lock, description}, {code.refused, "CODE text" of Redis}: nothing was changed, but
--                       perhaps the lease of a lock that was ours
--
-- flags: "m": only move a lock that is ours to this hold; "c": count the subscribers; or "cm".
-- free: there is no such key. passed_on: an operation before this one passed the lock on.

-- The status of a take of a lock that has another owner's field; nil: it is free. recalls: the
-- holder receives that, unless two tickets wait before this one.
local function refuse(op, lock, channel, num, other, recalls)
  local wait, ticket = words_of(op)
  local rank, was_first, arrives
  if wait ~= 'wait.none' then rank, ticket, was_first, arrives = enqueue(op, queue_of(lock), num, ticket) end
  local recalled = recall.none
  if recalls and other and rank then
    if rank < 2 then recalled = send(other, 'recall', lock) > 0 and recall.received or recall.missed end
    if was_first and rank > 0 then notify_first(lock, other, 0) end
  end
  -- Tickets further behind do not wait for the lock's channel.
  local counted, n = subscribers.uncounted, 0
  if not rank or rank < 2 then counted, n = count_subscribers(channel) end
  if not other then
    if rank then return {code.free_queued, counted, n, rank, ticket + 0, arrives} end
    return {code.free, counted, n}
  end
  local ttl = redis.call('PTTL', lock)
  if rank then return {code.queued, ttl, other, counted, n, rank, ticket + 0, arrives, recalled} end
  if given >= 4 then
    redis.call('HSET', lock, prefix .. num, '0') -- see release; with a ticket, something was written
    redis.call('HDEL', lock, prefix .. num)
  end
  return {code.held, ttl, other, counted, n}
end

-- Takes a free lock in the order of its queue. Returns the status; or nothing: that is not
-- wanted, or there is no ticket whose sidecar received the message.
local function in_order(op, lock, counter, channel, num, n, counts)
  local wait, ticket = words_of(op)
  local tickets = queue_of(lock)
  if wait ~= 'wait.in_order' and wait ~= 'wait.arrived' or count(tickets) == 0 then return end
  local _, stands = enqueue(op, tickets, num, ticket)
  local field, waiting, last, made = pass(lock, counter, tickets, num, n + 0 < policy.passed_tokens and 'policy.passed_tokens' or n,
    {lease = lease, passed = 0, more = 0, mine = stands})
  if not field then
    if stands == num then ask('ZREM', tickets, prefix .. num) end
    return waiting -- the status of a refused operation, or nil
  end
  if field ~= prefix .. (stands or '') then
    set_ticket(op, stands or ticket)
    return refuse(op, lock, channel, num, field, false)
  end
  if n == '0' then last, made = 0, false end
  local counted, subscribed = subscribers.uncounted, 0
  if counts then counted, subscribed = count_subscribers(channel) end
  return {code.taken, last, made and 1 or 0, waiting, string.sub(field, #prefix + 1) + 0, counted, subscribed}
end

-- Removes the ticket of a take that succeeded. Returns how many wait.
local function leave(op, lock)
  local _, ticket = words_of(op)
  local tickets = queue_of(lock)
  if ticket ~= '0' then ask('ZREM', tickets, prefix .. ticket) end
  return count(tickets)
end

-- ^ in define_queues ^

local queues         -- what define_queues returns, once that is needed
local wanted = false -- whether a lock of this run may have a queue

local function take(op, lock, counter, num, entries, n, flags, free, passed_on)
  local fields, kept, old, channel = 0, 0, nil, nil
  if not free then
    fields = ask('HLEN', lock)
    if fields == 0 and (flags == 'm' or flags == 'cm') then return {code.missing} end
  end
  local counts = flags == 'c' or flags == 'cm'
  if counts or fields ~= 0 or wanted then
    channel = 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
  end
  if fields ~= 0 then
    local other, no_lock
    old, other, no_lock = owner(lock, fields, num)
    if no_lock then return {code.not_a_lock, other} end
    if not old then
      queues = queues or define_queues()
      return queues.refuse(op, lock, channel, num, other, not passed_on)
    end
    local left = lease
    if old ~= prefix .. num and flags ~= 'm' and flags ~= 'cm' then
      queues = queues or define_queues()
      local _, ticket = queues.words_of(op)
      if old == prefix .. ticket then
        -- The lock has passed to the ticket of this take, which may be late: the sidecar may have the lock by that number
        -- now, and for longer.
        num, kept = ticket, ticket + 0
        left = math.max(left, redis.call('PTTL', lock))
      end
    end
    -- The expiry first: Redis permits PEXPIRE when it is out of memory, and after it this
    -- script may write. So a lock of ours can be kept and handed off.
    local expires = ask('PEXPIRE', lock, left)
    if type(expires) == 'table' then return {code.refused, expires.err} end
  elseif wanted then
    local status = queues.in_order(op, lock, counter, channel, num, n, counts)
    if status then return status end
  end
  local last, made = 0, false
  if n ~= '0' then
    last, made = draw(counter, n)
    if not last then return made end
  end

  local field = prefix .. num
  local written = ask('HSET', lock, field, entries)
  if written ~= 1 and type(written) == 'table' then return {code.refused, written.err} end
  if old then
    if old ~= field then redis.call('HDEL', lock, old) end
  else
    local expires = ask('PEXPIRE', lock, lease)
    if expires ~= 1 then
      -- Only PEXPIRE is not permitted. A lock without an expiry would never be free.
      redis.call('DEL', lock)
      return {code.refused, expires.err}
    end
  end
  local waiting = wanted and queues.leave(op, lock) or 0
  if counts then return {code.taken, last, made and 1 or 0, waiting, kept, count_subscribers(channel)} end
  if made or waiting > 0 or last == 0 or kept > 0 then
    return {code.taken, last, made and 1 or 0, waiting, kept, subscribers.uncounted, 0}
  end
  return last
end
