-- acquire_release: take locks and drop locks, each independently of the others.
--
-- All operations that a sidecar sends at one time are one script: to begin another one
-- costs Redis as much as to take and drop a lock.
--
-- KEYS     the locks, in this order:
--          those that are taken, with one entry and one token;
--          those that are taken in the same way, or waited for;
--          those that are set in another way;
--          those that are dropped;
--          those that are dropped, and whose ticket is given up;
--          those that are dropped and taken again, with one entry;
--          those that are dropped and taken again with tickets;
--          then, for each that is not only dropped, its token counter, STRING
-- ARGV[1]  prefix of this sidecar's owner fields
-- ARGV[2]  how many there are of each of the first six, a byte each
-- ARGV[3]  lease of what is taken, ms
-- ARGV[4]  lease of what is passed on by a drop, ms; 0: nothing is passed on
-- ARGV[5]  floor: tokens of this connection are above it; µs
-- ARGV[6]  birth: the first token of a new counter is above it, and above Redis's clock; µs
-- ARGV[7]  expiry of a counter after its last use, ms; 0: counters do not expire
-- ARGV[8…] for each lock, in the order of KEYS: hold number, decimal, below 2^53; and
--          if it is set: entries of the hold; how many tokens to draw, 0 draws none; "1":
--          only move a lock that is ours already to this hold, never take a free one;
--          wait; ticket, 0: none
--          if it is dropped, with this hold or an earlier one: channel; for how long it has
--          passed from owner to owner without having been free, ms; and if its ticket is
--          given up: that ticket, 0: none
--          if it is dropped and taken again: channel; the same time, below 50; hold number
--          of the new hold; how many tokens to draw, at least 1; wait; and with tickets: that
--          of the drop; that of the take
--
-- Returns for each lock, and for a lock that is dropped and taken again first for the drop
-- and then for the take,
-- a take   n >= 0          it is ours; n: the last token drawn, or 0
--          n < -1          it is ours; -n: the last token drawn; its counter did not exist
--          {n, listeners}  the same, and the subscribers were counted; -1: that is not permitted
--          {n, listeners, waiting, ticket}
--                          the same; listeners -2: they were not counted; so many tickets
--                          wait; the field has the number of this ticket, 0: the hold number
--          -1              there is no such key (of a lock that is only to be moved)
--          {PTTL, owner field or a description, listeners}
--                          it is not ours; nothing was changed, and no ticket stands
--          {PTTL, owner field or a description, listeners, rank, ticket, reached}
--                          it is not ours; this ticket stands in the queue, rank others
--                          before it; so many connections received the recall of the lock,
--                          -1: it was not recalled
-- a drop   n >= 0          our field is gone, or was before; published; n clients subscribe
--          -1              the same; to count the subscribers is not permitted
--          -2              the same; to publish is not permitted
--          -3              the key has another owner's field, or a later one of ours
--          {waiting}       the lock passed to the first of the queue; so many tickets wait
--          {n, pause}      as n; the lock is free for others although there is a queue, and
--                          its first asks again after the pause, ms
-- either   {description}   the key is of another type; nothing was changed
--          "CODE text"     the error of Redis for this lock alone; the lock is as it was,
--                          except for the lease of one that is ours already, and for the
--                          entries of one that is taken again with the number that it has
--
-- The queue of a lock is a ZSET, whose key is locksidecar_queue:{lock}, or if the lock's key
-- has a brace, locksidecar_queue::lock. Its members are tickets: the owner field
-- "<uuid>:<ticket>" that the lock gets if it passes to that ticket. Its scores are Redis's
-- clock when they came, µs. A HASH, locksidecar_signs:…, has for a uuid Redis's clock when
-- that sidecar last asked again with a ticket that stood, s. Both expire after 10 minutes
-- without use. They are no KEYS, so that a user who may not use them may use the locks: to
-- such a user each queue is empty, and no ticket stands.
--
-- wait of a take is "0", or "1": if another owner has the lock, a ticket is to stand in the
-- queue afterwards: the given one, if it does, or else one with the hold number. The take
-- returns its rank. The holder is told "recall" if the ticket is one of the first two. Or "2":
-- the same, and a free lock goes to the first of its queue, which may be a ticket of this
-- sidecar. The ticket of a take that succeeds is removed.
--
-- A drop passes a lock, if it is ours or free, to the first of its queue: the key gets the
-- field of the ticket and a lease, 32 tokens are drawn for it, and its sidecar is told
-- "transfer". A ticket whose sidecar does not receive that is removed, and so is a ticket
-- whose sidecar has not asked for 15 s, which is told "requeue", and one of this sidecar up
-- to the hold that is dropped: it was given up. After 128 such tickets the lock is free.
-- After a lock has passed from owner to owner for 50 ms, it is free for a moment if clients
-- subscribe to its channel, and after 100 ms in any case, and the first of the queue is
-- told "free". It is told so too if a lock that has a queue cannot be passed on.
--
-- Messages to a sidecar, on redisson_lock__channel:{locksidecar}:<uuid>:
--   transfer <ticket> <last token> <tokens> <lease, ms> <waiting> <passed, ms> <lock>
--   recall <lock>
--   free <pause, ms> <lock>
--   requeue <lock>
--
-- Commands that may fail (wrong type, memory, a read-only replica, permissions) run before
-- the lock is written. Commands that may fail for lack of memory also run before the
-- drops: once a script has written anything, Redis no longer enforces maxmemory for it. A
-- lock that is taken again or passed on needs no more memory than it had. Messages are
-- published after what they report was written.
--
-- Nearly every lock that is taken is free, and nearly every lock that is dropped is as
-- this sidecar left it, and has no queue. These two cases are the cost of this script.

local lease, floor, birth, expiry = ARGV[3], ARGV[5] + 0, ARGV[6] + 0, ARGV[7]
local ask = redis.pcall

local clock
-- Redis's clock, µs.
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000000 + time[2]
  end
  return clock
end

-- How many clients subscribe to a channel; -1: to count them is not permitted.
local function count_subscribers(channel)
  local reply = ask('PUBSUB', 'NUMSUB', channel)
  return reply.err and -1 or reply[2]
end

-- Draws n tokens, a decimal. Returns the last one, and true if there was no counter; or nil
-- and an error.
--
-- Tokens keep increasing after FLUSHALL and failover. A counter that is new or below the
-- floor may have lost its value: it was deleted or flushed, or it is that of a replica
-- that lags. It continues from Redis's
-- clock in µs, or from birth if that is later. That is above every token that this
-- sidecar knows: a counter starts at the time, and grows by less than one per µs,
-- because a round trip takes longer than the tokens that it draws.
local function draw(counter, n)
  local last = ask('INCRBY', counter, n)
  n = n + 0 -- INCRBY got the text: Redis would format a number digit by digit
  if type(last) == 'table' then return nil, last.err end
  if last >= 2 ^ 53 then return nil, 'ERR token counter ' .. counter .. ' is above 2^53: delete it' end
  if last - n < floor then
    local made = last == n
    last = math.max(now(), birth) + n
    local text = string.format('%.0f', last)
    if expiry == '0' then
      redis.call('SET', counter, text)
    elseif made then
      redis.call('SET', counter, text, 'PX', expiry)
    else
      -- A counter without an expiry was made by a program that wants it to stay.
      redis.call('SET', counter, text, 'KEEPTTL')
    end
    return last, made
  end
  local left = redis.call('PTTL', counter)
  if left >= 0 then
    if expiry == '0' then
      -- An earlier daemon made it. A Redisson program does not refresh an expiry, and
      -- would begin again at 1 after it.
      ask('PERSIST', counter)
    elseif left < expiry / 14 * 13 then
      redis.call('PEXPIRE', counter, expiry)
    end
  end
  return last, false
end

-- The queue. -----------------------------------------------------------------------------

-- How many tickets wait.
local function count_tickets(queue)
  local tickets = ask('ZCARD', queue)
  return type(tickets) == 'number' and tickets or 0
end

local function signs_of(queue) return 'locksidecar_signs:' .. string.sub(queue, #'locksidecar_queue:' + 1) end

-- Tells the sidecar of an owner field. Returns how many connections received the message.
local function tell(field, message)
  if not string.find(field, '^:%d+$', 37) then return 0 end
  local reached = ask('PUBLISH', 'redisson_lock__channel:{locksidecar}:' .. string.sub(field, 1, 36), message)
  return type(reached) == 'number' and reached or 0
end

-- Puts a ticket into the queue, unless the given one stands there. Returns the rank and the
-- number of the one that stands; -1: none does.
local function stand(queue, num, ticket)
  if ticket ~= '0' then
    local rank = ask('ZRANK', queue, prefix .. ticket)
    if type(rank) == 'number' then
      -- The expiry first: after it this script may write, and the sign needs memory.
      ask('PEXPIRE', queue, '600000')
      local signs = signs_of(queue)
      local signed = ask('HSET', signs, string.sub(prefix, 1, -2), string.format('%d', math.floor(now() / 1000000)))
      if type(signed) == 'number' then ask('PEXPIRE', signs, '600000') end
      return rank, ticket
    end
  end
  local added = ask('ZADD', queue, string.format('%.0f', now()), prefix .. num)
  if type(added) == 'table' then return -1 end
  ask('PEXPIRE', queue, '600000')
  return count_tickets(queue) - 1, num
end

-- Offers a lock to the tickets of its queue in their order, until a sidecar receives the
-- message. Returns that ticket, and how many wait behind it; or nil. Tickets of this sidecar
-- up to hold num are removed.
--
-- pause: the lock is free for so many ms, and the ticket keeps its place.
--
-- given: the lock passes to the ticket. It has old, the key's field, nil if there is no key,
-- and last, lease, passed and more, which are parts of the message; and mine: the first
-- ticket of this sidecar gets the lock, and no message. If no ticket gets it, the key is
-- deleted.
local function offer(lock, queue, num, pause, given)
  num = num + 0
  local old = given and given.old
  for _ = 1, 128 do
    local first = pause and ask('ZRANGE', queue, '0', '0', 'WITHSCORES') or ask('ZPOPMIN', queue)
    local field, seen = first[1], first[2]
    if not field then break end
    local ticket = string.match(field, '^:(%d+)$', 37)
    local own = ticket and string.sub(field, 1, #prefix) == prefix
    local is_old = false
    if ticket and not own and now() - seen > 15000000 then
      local sign = ask('HGET', signs_of(queue), string.sub(field, 1, 36))
      is_old = now() - (tonumber(sign) or 0) * 1000000 > 15000000
    end
    if not ticket or own and not (given and given.mine) and ticket + 0 <= num then
      -- No ticket, or one that was given up.
    elseif is_old then
      tell(field, 'requeue ' .. lock)
    elseif pause then
      if tell(field, 'free ' .. pause .. ' ' .. lock) > 0 then return field end
    else
      redis.call('HSET', lock, field, '1')
      if old then redis.call('HDEL', lock, old) else redis.call('PEXPIRE', lock, given.lease) end
      old = field
      local waiting = count_tickets(queue) + given.more
      if own and given.mine then return field, waiting end
      local message = string.format('transfer %s %.0f 32 %s %d %s ', ticket, given.last, given.lease, waiting, given.passed) .. lock
      if tell(field, message) > 0 then return field, waiting end
    end
    if pause then ask('ZREM', queue, field) end
  end
  if old then ask('DEL', lock) end
end

-- Passes a lock on, see offer. Returns the ticket that has it, how many wait, and the last
-- token drawn, and true if there was no counter; or nil; or nil and an error, after which
-- nothing was changed but the lease.
local function pass(lock, counter, queue, num, n, given)
  -- The expiry first: see take.
  local expires = ask('PEXPIRE', lock, given.lease)
  if type(expires) == 'table' then return nil, expires.err end
  local last, made = draw(counter, n)
  if not last then return nil, made end
  given.last = last
  local field, waiting = offer(lock, queue, num, nil, given)
  return field, waiting, last, made
end

-- Takes. ---------------------------------------------------------------------------------

local function channel_of(counter)
  return 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
end

-- The status of a take of a lock that has another owner's field. recalls: the holder is
-- told, unless others wait before the ticket.
local function refuse(lock, counter, queue, num, wait, ticket, other, recalls)
  local rank, reached = -1, -1
  if wait ~= '0' then rank, ticket = stand(queue, num, ticket) end
  if recalls and (rank == 0 or rank == 1) then reached = tell(other, 'recall ' .. lock) end
  local ttl = redis.call('PTTL', lock)
  -- Tickets further behind do not wait for the lock's channel.
  local listeners = rank < 2 and count_subscribers(channel_of(counter)) or -2
  if rank < 0 then return {ttl, other, listeners} end
  return {ttl, other, listeners, rank, ticket + 0, reached}
end

-- Takes a free lock in the order of its queue, which has tickets. Returns the status; or
-- nothing: none of the tickets could be told.
local function take_in_order(lock, counter, num, n, ticket, queue)
  local _, stands = stand(queue, num, ticket)
  local field, waiting, last, made = pass(lock, counter, queue, num, n + 0 < 32 and '32' or n,
    {lease = lease, passed = '0', more = 0, mine = true})
  if not field then
    if stands == num then ask('ZREM', queue, prefix .. num) end
    return waiting -- an error, or nil
  end
  if string.sub(field, 1, #prefix) ~= prefix then
    return refuse(lock, counter, queue, num, '1', stands or ticket, field, false)
  end
  local listeners = n == '1' and -2 or count_subscribers(channel_of(counter))
  if n == '0' then last = 0 end
  return {made and -last or last, listeners, waiting, string.sub(field, #prefix + 1) + 0}
end

local wanted -- whether any lock of this run may have a queue

-- passed_on: the lock passed to its field by an operation before this one.
local function take(lock, counter, num, entries, n, move, wait, ticket, queue, free, passed_on)
  local fields, old, listeners = 0, nil, nil
  if not free then
    fields = ask('HLEN', lock)
    if fields ~= 0 then
      local other, no_hash
      old, other, no_hash = owner(lock, fields, num)
      if no_hash then return {other} end
      if not old then return refuse(lock, counter, queue, num, wait, ticket, other, not passed_on) end
    elseif move then
      return -1
    elseif wait == '2' and wanted and count_tickets(queue) > 0 then
      local status = take_in_order(lock, counter, num, n, ticket, queue)
      if status then return status end
    end
  end
  if fields ~= 0 or n ~= '1' then
    -- A lock that was taken for one client is not handed off before more tokens are
    -- drawn. Until then the sidecar does not need the number of subscribers.
    listeners = count_subscribers(channel_of(counter))
  end
  if old then
    -- The expiry first: Redis permits PEXPIRE when it is out of memory, and after it this
    -- script may write. So a lock of ours can be kept and handed off.
    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then return expires.err end
  end
  local last, made = 0, false
  if n ~= '0' then
    last, made = draw(counter, n)
    if not last then return made end
  end

  local field = prefix .. num
  local written = ask('HSET', lock, field, entries)
  if type(written) == 'table' then return written.err end
  if old then
    if old ~= field then redis.call('HDEL', lock, old) end
  else
    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then
      -- Only PEXPIRE is not permitted. A lock without an expiry would never be free.
      redis.call('DEL', lock)
      return expires.err
    end
  end
  if made then last = -last end
  if wanted then
    if ticket ~= '0' then ask('ZREM', queue, prefix .. ticket) end
    local waiting = count_tickets(queue)
    if waiting > 0 then return {last, listeners or -2, waiting, 0} end
  end
  return listeners and {last, listeners} or last
end

-- Drops. ---------------------------------------------------------------------------------

local unlocked = '0' -- the only payload that Redisson takes for a release

-- Publishes a release. Returns the status of the drop.
local function publish(channel)
  local receivers = ask('PUBLISH', channel, unlocked)
  if type(receivers) == 'table' then return -2 end
  -- A client that subscribes to a pattern received the message, too, and does not wait
  -- for the lock.
  return receivers == 0 and 0 or count_subscribers(channel)
end

local function release(lock, num, channel)
  -- A key that has only this field is gone after this. If another program has built
  -- another structure around our field, its fields stay, and a client that is woken by
  -- the message finds them.
  local gone = ask('HDEL', lock, prefix .. num)
  if gone == 0 then
    local fields = redis.call('HLEN', lock)
    -- No field at all: the lock may have expired a moment ago, for which there was no
    -- message.
    if fields ~= 0 then
      if not owner(lock, fields, num) then return -3 end
      gone = ask('DEL', lock)
    end
  end
  if type(gone) == 'table' then
    local _, other = owner(lock, gone, num)
    return {other}
  end
  return publish(channel)
end

-- Drops a lock that has a queue. more: so many tickets will stand behind those of the
-- queue. Returns the status, and true if the lock was passed on.
local function drop_waited(lock, num, channel, passed, queue, more)
  local fields = ask('HLEN', lock)
  local old = fields ~= 0 and owner(lock, fields, num) or nil
  if fields ~= 0 and not old then return release(lock, num, channel) end
  local given_lease, pauses = ARGV[4], passed + 0 >= 50
  if pauses then pauses = passed + 0 >= 100 or count_subscribers(channel) > 0 end
  local refused = given_lease == '0'
  if not pauses and not refused then
    local field, waiting = pass(lock, 'redisson_lock_token:' .. string.sub(channel, #'redisson_lock__channel:' + 1), queue, num, '32',
      {old = old, lease = given_lease, passed = passed, more = more})
    if field then return {waiting}, true end
    refused = waiting
  end
  local listeners = release(lock, num, channel)
  if pauses then
    local pause = listeners == 0 and 4 or 10
    offer(lock, queue, num, pause)
    return {listeners, pause}
  end
  if refused then offer(lock, queue, num, 0) end
  return listeners
end

local function drop(lock, num, channel, passed, ticket, queue, more)
  if wanted then
    if ticket ~= '0' then ask('ZREM', queue, prefix .. ticket) end
    if count_tickets(queue) > 0 then return drop_waited(lock, num, channel, passed, queue, more) end
  end
  return release(lock, num, channel)
end

-- The run. -------------------------------------------------------------------------------

local once, waited, sets, drops, leaves, retakes = string.byte(ARGV[2], 1, 6)
local takes = once + waited
local sets_end = takes + sets
local drops_end = sets_end + drops + leaves
local locks = (#KEYS + drops + leaves) / 2

local statuses = {}
local counters, n, a = locks, 0, 8
local function note(ok, status)
  if not ok and type(status) == 'table' then status = status.err end
  n = n + 1
  statuses[n] = status
end

-- Nearly always nobody waits, and all locks that are taken are free. One command finds that
-- out for all.
local queues = {}
for i = 1, locks do
  local lock = KEYS[i]
  queues[i] = string.find(lock, '{', 1, true) and 'locksidecar_queue::' .. lock or 'locksidecar_queue:{' .. lock .. '}'
end
for i = 1, takes do queues[locks + i] = KEYS[i] end
local found = ask('EXISTS', unpack(queues))
local free = found == 0
if type(found) == 'table' then
  -- This user may not use all queues.
  wanted, free = true, takes > 1 and ask('EXISTS', unpack(KEYS, 1, takes)) == 0
elseif not free then
  wanted = takes == 0 or ask('EXISTS', unpack(queues, 1, locks)) ~= 0
end

for i = 1, drops_end do
  local lock, num, queue = KEYS[i], ARGV[a], queues[i]
  if i > sets_end then
    local leaves_queue = i > sets_end + drops
    note(pcall(drop, lock, num, ARGV[a + 1], ARGV[a + 2], leaves_queue and ARGV[a + 3] or '0', queue, 0))
    a = a + (leaves_queue and 4 or 3)
  else
    counters = counters + 1
    if i <= takes then
      note(pcall(take, lock, KEYS[counters], num, '1', '1', false, i > once and '1' or '0', '0', queue, free))
      a = a + 1
    else
      note(pcall(take, lock, KEYS[counters], num, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3] == '1', ARGV[a + 4], ARGV[a + 5], queue, false))
      a = a + 6
    end
  end
end
if drops_end == locks then return statuses end

-- Drops and takes a lock by changing only its field: to delete the key and make it again
-- costs Redis more than all the rest, and no other host could have taken it in between.
-- Returns the token. If the lock is not exactly as this sidecar left it, it returns
-- nothing and has changed nothing; then drop and take follow.
--
-- The expiry of the counter needs no look: the take before this one refreshed it.
local function retake(lock, counter, old, num, n)
  if ask('HLEN', lock) ~= 1 then return end
  local last = ask('INCRBY', counter, n)
  if type(last) == 'table' then return end
  if last - n >= floor and last < 2 ^ 53 and ask('HSET', lock, prefix .. num, '1') == 1 then
    if ask('HDEL', lock, prefix .. old) ~= 1 then
      ask('HDEL', lock, prefix .. num)
    else
      if ask('PEXPIRE', lock, lease) == 1 then return last end
      -- Only PEXPIRE is not permitted. The lock is dropped, and take returns the error.
      ask('DEL', lock)
    end
  end
  -- The draw is undone: take must find the counter as it was. A counter that did not
  -- exist, or was 0, which means the same, is made by take.
  if last == n + 0 then ask('DEL', counter) else ask('INCRBY', counter, '-' .. n) end
end

for i = drops_end + 1, locks do
  counters = counters + 1
  local lock, counter, queue = KEYS[i], KEYS[counters], queues[i]
  local num, channel, passed, later, draws, wait = unpack(ARGV, a, a + 5)
  local given_up, ticket = '0', '0'
  a = a + 6
  if i > drops_end + retakes then
    given_up, ticket = ARGV[a], ARGV[a + 1]
    a = a + 2
  end
  local last = not (wanted and count_tickets(queue) > 0) and retake(lock, counter, num, later, draws)
  if last then
    statuses[n + 1], statuses[n + 2] = publish(channel), draws == '1' and last or {last, count_subscribers(channel)}
    n = n + 2
  else
    local ok, status, passed_on = pcall(drop, lock, num, channel, passed, given_up, queue, wait == '0' and 0 or 1)
    note(ok, status)
    note(pcall(take, lock, counter, later, '1', draws, false, wait, ticket, queue, false, ok and passed_on))
  end
end
return statuses
