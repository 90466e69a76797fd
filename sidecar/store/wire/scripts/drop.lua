-- drop: delete our field from the key of a lock, and pass the lock on or publish its release.
--
-- release(lock, num, channel, deleted), and queues.drop for a lock that may have a queue, return a status:
--   0                                                   our field is gone, or was before; that was
--                                                       published, and reached no client
--   {code.dropped, how the subscribers were counted, n} the same. uncounted: the key has another
--                                                       owner's field, or a later one of ours, and
--                                                       nothing was published. unpublished: to
--                                                       publish is not permitted
--   {code.passed, how many wait}                        the lock passed to the first of the queue
--   {code.paused, how the subscribers were counted, n}  as code.dropped; sidecars leave the lock free
--                                                       for a moment
--   {code.not_a_lock, description}                      the key is of another type; it was not changed
--
-- A lock that has passed from owner to owner for long is left free for a moment, unless a take
-- without an arrival follows: earlier if clients subscribe to its channel, and later in any case.
-- The first ticket stays, and its sidecar receives "free". It also does if a lock that has a queue
-- cannot be passed on, and, with a pause of 0, if a drop finds the lock of a program that is no
-- sidecar, which passes it to no ticket; but not if the drop only gave up a ticket behind the first.

-- Drops a lock that may have a queue. again: the hold number of the take that
-- follows; nil: none does. Returns the status; true if the lock was passed on; and true if the
-- take must leave it free.
local function drop(op, lock, num, channel, again)
  local _, ticket, passed = words_of(op)
  local wait = again and words_of(op + 1) or 'wait.none'
  local arrived = wait == 'wait.arrived'
  local tickets = queue_of(lock)
  local notifies = true
  if ticket ~= '0' then
    notifies = ask('ZRANK', tickets, prefix .. ticket) == 0
    write('ZREM', tickets, prefix .. ticket)
  end
  passed = passed + 0
  local pauses = false
  if passed >= policy.free_after_subscribed_ms and (arrived or not again) then
    local _, subscribed = count_subscribers(channel)
    pauses = subscribed > 0 or passed >= policy.free_after_ms
  end
  if count(tickets) == 0 and not (arrived and pauses) then return release(lock, num, channel) end
  local fields = ask('HLEN', lock)
  local old, other
  if fields ~= 0 then old, other = owner(lock, fields, num) end
  if other then
    if notifies then notify_first(lock, other, num) end
    return release(lock, num, channel)
  end
  -- A take without arrival gets a ticket behind those of the queue. No sidecar accepts a transfer
  -- that says that the lock should have been left free.
  local given = {
    old = old, lease = pass_lease, passed = math.min(passed, policy.free_after_ms - 1),
    more = (wait == 'wait.queued' or wait == 'wait.in_order') and 1 or 0,
  }
  if arrived then
    local _, stands = enqueue(op + 1, tickets, again, '0')
    given.mine = stands
  end
  local refused, deleted = given.lease == '0', false
  if not pauses and not refused then
    local counter = 'redisson_lock_token:' .. string.sub(channel, #'redisson_lock__channel:' + 1)
    local field, waiting = pass(lock, counter, tickets, num, 'policy.passed_tokens', given)
    if field then return {code.passed, waiting}, true end
    refused, deleted = waiting, not waiting
  end
  local status = release(lock, num, channel, deleted)
  if pauses then
    local counted, n = subscribers.counted, 0
    if status ~= 0 then counted, n = status[2], status[3] end
    local pause = policy.free_for_ms
    if counted == subscribers.counted and n == 0 then pause = policy.free_for_alone_ms end
    offer(lock, tickets, num, pause)
    return {code.paused, counted, n}, false, arrived
  end
  if refused then offer(lock, tickets, num, 0) end
  return status
end

-- ^ in define_queues ^

local function release(lock, num, channel, deleted)
  -- A key that has only this field is gone after this. If another program has built
  -- another structure around our field, its fields stay, and a client that is woken by
  -- the message finds them.
  local gone = gone or deleted and 1 or ask('HDEL', lock, prefix .. num)
  if gone ~= 1 then
    if gone == 0 then
      if given >= 4 then
        -- A WAIT covers what its connection wrote, and nothing else. Another one has removed the field.
        redis.call('HSET', lock, prefix .. num, '0')
        redis.call('HDEL', lock, prefix .. num)
      end
      local fields = redis.call('HLEN', lock)
      -- No field at all: the lock may have expired a moment ago, for which there was no
      -- message.
      if fields ~= 0 then
        if not owner(lock, fields, num) then return {code.dropped, subscribers.uncounted, 0} end
        gone = ask('DEL', lock)
      end
    end
    if type(gone) == 'table' then
      local _, other = owner(lock, gone, num)
      return {code.not_a_lock, other}
    end
  end
  local receivers = receivers or ask(publish, channel, unlocked)
  if receivers == 0 then return 0 end
  if type(receivers) == 'table' then return {code.dropped, subscribers.unpublished, 0} end
  -- A client that subscribes to a pattern received the message, too, and does not wait
  -- for the lock.
  return {code.dropped, count_subscribers(channel)}
end
