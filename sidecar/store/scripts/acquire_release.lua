-- acquire_release: take locks and drop locks, each independently of the others.
--
-- All operations that a sidecar sends at one time are one script: to begin another one
-- costs Redis as much as to take and drop a lock.
--
-- KEYS     the locks, in this order:
--          those that are taken, with one entry and one token;
--          those that are set in another way;
--          those that are dropped;
--          those that are dropped and taken again, with one entry;
--          then, for each that is not only dropped, its token counter, STRING
-- ARGV[1]  prefix of this sidecar's owner fields
-- ARGV[2]  bytes: how many are taken; are set; are dropped; and 1 if a lock may have a brace,
--          and 2 more if a lock that is dropped is taken again for a request that arrived at a
--          given time
-- ARGV[3]  lease of what is taken, ms
-- ARGV[4]  lease of what is passed on by a drop, ms; 0: nothing is passed on
-- ARGV[5]  floor: tokens of this connection are above it; µs
-- ARGV[6]  birth: the first token of a new counter is above it, and above Redis's clock; µs
-- ARGV[7]  expiry of a counter after its last use, ms; 0: counters do not expire
-- ARGV[8]  of the queue: for each operation two numbers, each followed by a space; missing
--          ones are 0. Of a take: wait; ticket, 0: none. Of a drop: for how long the lock
--          has passed from owner to owner without having been free, ms; the ticket that is
--          given up, 0: none
-- ARGV[9]  origin: the server that executes this script, as the connection knows it; messages
--          name it
-- ARGV[10…] for each lock, in the order of KEYS: hold number, decimal, below 2^53; and
--          if it is set: entries of the hold; how many tokens to draw, 0 draws none; "1":
--          only move a lock that is ours already to this hold, never take a free one
--          if it is dropped, with this hold or an earlier one: channel
--          if it is dropped and taken again: hold number of the new hold; how many tokens to
--          draw, at least 1
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
--          {PTTL, owner field or a description, listeners, rank, ticket, reached, arrived}
--                          it is not ours; this ticket stands in the queue, rank others
--                          before it; so many connections received the recall of the lock,
--                          -1: it was not recalled; arrived: when a request arrives that
--                          comes with this take, µs
-- a drop   n >= 0          our field is gone, or was before; published; n clients subscribe
--          -1              the same; to count the subscribers is not permitted
--          -2              the same; to publish is not permitted
--          -3              the key has another owner's field, or a later one of ours; nothing
--                          was published
--          {waiting}       the lock passed to the first of the queue; so many tickets wait
--          {n, pause}      as n; the lock is free for others although there is a queue, and
--                          its first asks again after the pause, ms
-- either   {description}   the key is of another type; for a take, also a hash that is not a
--                          lock; nothing was changed
--          "CODE text"     the error of Redis for this lock alone; the lock is as it was,
--                          except for the lease of one that is ours already
--
-- The queue of a lock is a ZSET, whose key is locksidecar_queue:{lock}, or if the lock's
-- key has a brace, locksidecar_queue::lock. Its members are tickets: the owner field
-- "<uuid>:<ticket>" that the lock gets if it passes to that ticket. Its scores are Redis's
-- clock when they came, µs, or 1 more than the last one if the clock was set back. A HASH,
-- locksidecar_signs:…, has for a uuid Redis's clock when that sidecar last asked again with
-- a ticket that stood, s. Both expire after 10 minutes without use. They are no KEYS, so
-- that a user who may not use them may use the locks: to such a user each queue is empty,
-- and no ticket stands.
--
-- wait of a take:
--   0  it gets no ticket
--   1  if another owner has the lock, a ticket is in the queue afterwards: the given one, if
--      it is there, or else one with the hold number. The holder receives "recall" if the
--      ticket is one of the first two
--   2  the same, and a free lock goes to the first ticket of its queue, which may be the one
--      of this take
--   n  above 2: the same, for a request that arrived when Redis's clock was n, µs: its ticket
--      stands before those of requests that arrived later
-- The ticket of a take that succeeds is removed.
--
-- A drop passes a lock that is ours or free to the first ticket of its queue: the key gets
-- the field of the ticket and a lease, 32 tokens are drawn for it, and its sidecar receives
-- "transfer". Some tickets are removed instead:
--   a ticket whose sidecar does not receive the message;
--   a ticket whose sidecar has not asked for 15 s, with what its sidecar has in
--   locksidecar_signs; that receives "requeue";
--   a ticket of this sidecar up to the hold that is dropped: it was given up.
-- After 128 such tickets the lock is free.
--
-- A drop may find the lock of a program that is no sidecar, and so can pass nothing on. Then
-- the first ticket's sidecar receives "free" with a pause of 0, unless the drop only gave a
-- ticket up that was not the first. It also does if a take moves the first ticket back.
--
-- A lock that has passed from owner to owner for 50 ms is left free for a moment if clients
-- subscribe to its channel, unless it is taken again, and after 100 ms in any case. The first
-- ticket stays, and its sidecar receives "free". It also does if a lock that has a queue
-- cannot be passed on.
--
-- A lock that is dropped and taken again for a request that arrived at a given time passes to
-- the first of all tickets, that of the take among them. It may be left free for a moment, too.
-- Then the take only has its ticket, and its status has no owner.
--
-- Messages to a sidecar, on redisson_lock__channel:{locksidecar}:<uuid>:
--   transfer:<origin> <ticket> <last token> <tokens> <lease, ms> <waiting> <passed, ms> <lock>
--   recall:<origin> <lock>
--   free:<origin> <pause, ms> <lock>
--   requeue:<origin> <ticket> <lock>
-- A sidecar whose uuid is not of version 8 may know no origins: its messages have none, and its
-- requeue has no ticket.
--
-- A replica executes what only reads. So the first command of an operation that would write, and
-- is refused with READONLY, ends the operation with this error: what it read may be out of date.
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
local ask, keys, args = redis.pcall, KEYS, ARGV -- Redis finds locals faster than globals

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
    local time = redis.call('TIME')
    local made = last == n
    last = math.max(time[1] * 1000000 + time[2], birth) + n
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
  local left = ask('PTTL', counter)
  if left ~= -1 then
    if type(left) == 'table' then return nil, left.err end
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

local unlocked = '0' -- the only payload that Redisson takes for a release

-- Deletes our field, and publishes that. Returns the status of the drop.
local function release(lock, num, channel)
  -- A key that has only this field is gone after this. If another program has built
  -- another structure around our field, its fields stay, and a client that is woken by
  -- the message finds them.
  local gone = ask('HDEL', lock, prefix .. num)
  if gone ~= 1 then
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
  end
  local receivers = ask('PUBLISH', channel, unlocked)
  if receivers == 0 then return 0 end
  if type(receivers) == 'table' then return -2 end
  -- A client that subscribes to a pattern received the message, too, and does not wait
  -- for the lock.
  return count_subscribers(channel)
end

-- What is done with queues. Redis pays in each run for each function that a script defines,
-- so these are defined when they are first needed. Returns a table of some of them.
local function define_queue_functions()
  local words = {}
  for word in string.gmatch(ARGV[8], '%d+') do words[#words + 1] = word end
  -- The numbers of an operation in ARGV[8].
  local function words_of(op) return words[2 * op - 1] or '0', words[2 * op] or '0' end

  local clock
  -- Redis's clock, µs.
  local function now()
    if not clock then
      local time = redis.call('TIME')
      clock = time[1] * 1000000 + time[2]
    end
    return clock
  end

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

  -- Executes a command that writes, and may fail for any reason but that this server is a replica.
  local function write(...)
    local reply = ask(...)
    if type(reply) == 'table' and reply.err and string.find(reply.err, 'READONLY', 1, true) then error(reply) end
    return reply
  end

  -- Sends a message, of a word and the rest, to the sidecar of an owner field. Returns how many
  -- connections received it.
  local function send(field, word, rest)
    if not string.find(field, '^:%d+$', 37) then return 0 end
    if string.sub(field, 15, 15) == '8' then word = word .. ':' .. ARGV[9] end
    local reached = ask('PUBLISH', 'redisson_lock__channel:{locksidecar}:' .. string.sub(field, 1, 36), word .. ' ' .. rest)
    return type(reached) == 'number' and reached or 0
  end

  -- Notes that this sidecar has asked.
  local function sign(queue)
    local signs = signs_of(queue)
    local signed = write('HSET', signs, string.sub(prefix, 1, -2), string.format('%d', math.floor(now() / 1000000)))
    if type(signed) == 'number' then ask('PEXPIRE', signs, '600000') end
  end

  -- Whether the sidecar of an owner field receives messages, as far as this user may know.
  local function has_receiver(field)
    if not string.find(field, '^:%d+$', 37) then return false end
    return count_subscribers('redisson_lock__channel:{locksidecar}:' .. string.sub(field, 1, 36)) > 0
  end

  -- Puts a ticket into the queue, unless the given one stands there. wait: see above. Returns
  -- the rank and the number of the one that stands, true if it was the first before, and when a
  -- request arrives that comes with this take, µs; rank -1: none stands.
  local function enqueue(queue, num, ticket, wait)
    local arrives = arrival_at(queue)
    local arrived = wait + 0 > 2 and string.format('%.0f', math.min(wait + 0, arrives))
    if ticket ~= '0' then
      local rank = ask('ZRANK', queue, prefix .. ticket)
      if type(rank) == 'number' then
        -- The expiry first: after it this script may write, and the others need memory.
        write('PEXPIRE', queue, '600000')
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
    if type(added) == 'table' then return -1 end
    ask('PEXPIRE', queue, '600000')
    if not arrived then return count(queue) - 1, num, false, arrives end
    sign(queue) -- without it, the ticket would be as old as its request
    return ask('ZRANK', queue, prefix .. num), num, false, arrives
  end

  -- Offers a lock to the tickets of its queue in their order, until a sidecar receives the
  -- message. Returns that ticket, and how many wait behind it; or nil. Tickets of this
  -- sidecar up to hold num are removed.
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
    for _ = 1, 128 do
      local first = pause and ask('ZRANGE', queue, '0', '0', 'WITHSCORES') or write('ZPOPMIN', queue)
      local field, seen = first[1], first[2]
      if not field then break end
      local ticket = string.match(field, '^:(%d+)$', 37)
      local own = ticket and string.sub(field, 1, #prefix) == prefix
      local is_old = false
      if ticket and not own and now() - seen > 15000000 then
        local sign = ask('HGET', signs_of(queue), string.sub(field, 1, 36))
        is_old = now() - (tonumber(sign) or 0) * 1000000 > 15000000
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
        local message = string.format('%s %.0f 32 %s %d %s ', ticket, given.last, given.lease, waiting, given.passed)
        if send(field, 'transfer', message .. lock) > 0 then return field, waiting end
      end
      if pause then write('ZREM', queue, field) end
    end
    if old then ask('DEL', lock) end
  end

  -- A lock was found to have another owner's field. If that is no sidecar, it passes the lock to
  -- no ticket: the first one has to ask again, because it may not know that it is the first, or
  -- that the holder is no sidecar.
  local function notify_first(lock, other, num)
    if not has_receiver(other) then offer(lock, queue_of(lock), num, 0) end
  end

  -- The status of a take of a lock that has another owner's field. recalls: the holder
  -- receives that, unless two tickets wait before this one.
  local function refuse(op, lock, channel, num, other, recalls)
    local rank, reached, was_first, arrives = -1, -1, false, nil
    local wait, ticket = words_of(op)
    if wait ~= '0' then rank, ticket, was_first, arrives = enqueue(queue_of(lock), num, ticket, wait) end
    if recalls and (rank == 0 or rank == 1) then reached = send(other, 'recall', lock) end
    if recalls and was_first and rank > 0 then notify_first(lock, other, 0) end
    local ttl = redis.call('PTTL', lock)
    -- Tickets further behind do not wait for the lock's channel.
    local listeners = rank < 2 and count_subscribers(channel) or -2
    if rank < 0 then return {ttl, other, listeners} end
    return {ttl, other, listeners, rank, ticket + 0, reached, arrives}
  end

  -- Passes a lock on, see offer. Returns the ticket that has it, how many wait, the last
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

  -- Takes a free lock in the order of its queue. Returns the status; or nothing: that is not
  -- wanted, or there is no ticket whose sidecar received the message.
  local function take_in_order(op, lock, counter, channel, num, n)
    local wait, ticket = words_of(op)
    local queue = queue_of(lock)
    if wait + 0 < 2 or count(queue) == 0 then return end
    local _, stands = enqueue(queue, num, ticket, wait)
    local field, waiting, last, made = pass(lock, counter, queue, num, n + 0 < 32 and '32' or n,
      {lease = lease, passed = '0', more = 0, mine = stands})
    if not field then
      if stands == num then ask('ZREM', queue, prefix .. num) end
      return waiting -- an error, or nil
    end
    if field ~= prefix .. (stands or '') then
      words[2 * op] = stands or ticket
      return refuse(op, lock, channel, num, field, false)
    end
    local listeners = n == '1' and -2 or count_subscribers(channel)
    if n == '0' then last = 0 end
    return {made and -last or last, listeners, waiting, string.sub(field, #prefix + 1) + 0}
  end

  -- Removes the ticket of a take that succeeded. Returns how many wait.
  local function leave(op, lock)
    local _, ticket = words_of(op)
    local queue = queue_of(lock)
    if ticket ~= '0' then ask('ZREM', queue, prefix .. ticket) end
    return count(queue)
  end

  -- Drops a lock that may have a queue. again: the hold number of the take that follows; nil:
  -- none does. Returns the status; true if the lock was passed on; and true if the take must
  -- leave it free.
  local function drop(op, lock, num, channel, again)
    local passed, ticket = words_of(op)
    local wait = again and words_of(op + 1) or '0'
    local arrived = wait + 0 > 2
    local queue = queue_of(lock)
    local notifies = true
    if ticket ~= '0' then
      notifies = ask('ZRANK', queue, prefix .. ticket) == 0
      write('ZREM', queue, prefix .. ticket)
    end
    local long = passed + 0 >= 50 and (arrived or not again)
    local pauses = long and (passed + 0 >= 100 or count_subscribers(channel) > 0)
    if count(queue) == 0 and not (arrived and pauses) then return release(lock, num, channel) end
    local fields = ask('HLEN', lock)
    local old, other
    if fields ~= 0 then old, other = owner(lock, fields, num) end
    if other then
      if notifies then notify_first(lock, other, num) end
      return release(lock, num, channel)
    end
    -- A take without arrival gets a ticket behind those of the queue. No sidecar accepts a transfer
    -- of a lock that has passed on for longer than 99 ms.
    local given = {old = old, lease = ARGV[4], passed = math.min(passed, 99), more = (arrived or wait == '0') and 0 or 1}
    if arrived then
      local _, stands = enqueue(queue, again, '0', wait)
      given.mine = stands
    end
    local refused = given.lease == '0'
    if not pauses and not refused then
      local counter = 'redisson_lock_token:' .. string.sub(channel, #'redisson_lock__channel:' + 1)
      local field, waiting = pass(lock, counter, queue, num, '32', given)
      if field then return {waiting}, true end
      refused = waiting
    end
    local listeners = release(lock, num, channel)
    if pauses then
      local pause = listeners == 0 and 4 or 10
      offer(lock, queue, num, pause)
      return {listeners, pause}, false, arrived
    end
    if refused then offer(lock, queue, num, 0) end
    return listeners
  end

  return {refuse = refuse, take_in_order = take_in_order, leave = leave, drop = drop}
end

local queues        -- the functions for them, once they are defined
local wanted = false -- whether a lock of this run may have a queue

-- passed_on: the lock passed to its field by an operation before this one.
local function take(op, lock, counter, num, entries, n, move, free, passed_on)
  local fields, old, listeners = 0, nil, nil
  if not free then
    fields = ask('HLEN', lock)
    if fields == 0 and move then return -1 end
  end
  if fields ~= 0 or n ~= '1' or wanted then
    local channel = 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
    if fields ~= 0 then
      local other, no_lock
      old, other, no_lock = owner(lock, fields, num)
      if no_lock then return {other} end
      if not old then
        queues = queues or define_queue_functions()
        return queues.refuse(op, lock, channel, num, other, not passed_on)
      end
    elseif wanted then
      local status = queues.take_in_order(op, lock, counter, channel, num, n)
      if status then return status end
    end
    -- A lock that was taken for one client is not handed off before more tokens are
    -- drawn. Until then the sidecar does not need the number of subscribers.
    if fields ~= 0 or n ~= '1' then listeners = count_subscribers(channel) end
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
  if written ~= 1 and type(written) == 'table' then return written.err end
  if old then
    if old ~= field then redis.call('HDEL', lock, old) end
  else
    local expires = ask('PEXPIRE', lock, lease)
    if expires ~= 1 then
      -- Only PEXPIRE is not permitted. A lock without an expiry would never be free.
      redis.call('DEL', lock)
      return expires.err
    end
  end
  if made then last = -last end
  if wanted then
    local waiting = queues.leave(op, lock)
    if waiting > 0 then return {last, listeners or -2, waiting, 0} end
  end
  return listeners and {last, listeners} or last
end

local takes, sets, drops, flags = string.byte(args[2], 1, 4)
local locks = (#keys + drops) / 2

local statuses = {}
local counters, n, a = locks, 0, 10
local function note(ok, status)
  if not ok and type(status) == 'table' then status = status.err end
  n = n + 1
  statuses[n] = status
end

-- Nearly always all locks that are taken are free, and no lock has a queue. One command
-- finds that out for all.
local names = {unpack(keys, 1, takes + locks)} -- which makes room
for i = 1, locks do names[takes + i] = 'locksidecar_queue:{' .. keys[i] .. '}' end
for i = 1, flags % 2 == 1 and locks or 0 do
  if string.find(keys[i], '{', 1, true) then names[takes + i] = 'locksidecar_queue::' .. keys[i] end
end
local found = ask('EXISTS', unpack(names))
local free = found == 0
if not free then
  -- This user may not be permitted to use all queues.
  wanted = takes == 0 or ask('EXISTS', unpack(names, takes + 1)) ~= 0
  if type(found) == 'table' and takes > 1 then free = ask('EXISTS', unpack(keys, 1, takes)) == 0 end
end
wanted = wanted or flags >= 2
if wanted then queues = define_queue_functions() end

local again = takes + sets + drops + 1
for i = 1, again - 1 do
  local lock, num = keys[i], args[a]
  if i > takes + sets then
    if wanted then note(pcall(queues.drop, i, lock, num, args[a + 1])) else note(pcall(release, lock, num, args[a + 1])) end
    a = a + 2
  else
    counters = counters + 1
    if i <= takes then
      note(pcall(take, i, lock, keys[counters], num, '1', '1', false, free))
      a = a + 1
    else
      note(pcall(take, i, lock, keys[counters], num, args[a + 1], args[a + 2], args[a + 3] == '1', false))
      a = a + 4
    end
  end
end
for i = again, locks do
  counters = counters + 1
  local lock, num, counter = keys[i], args[a], keys[counters]
  local channel = 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
  local ok, status, passed_on, stays_free
  if wanted then
    ok, status, passed_on, stays_free = pcall(queues.drop, n + 1, lock, num, channel, args[a + 1])
  else
    ok, status = pcall(release, lock, num, channel)
  end
  note(ok, status)
  if stays_free then
    note(pcall(queues.refuse, n + 1, lock, channel, args[a + 1], '', false))
  else
    note(pcall(take, n + 1, lock, counter, args[a + 1], '1', args[a + 2], false, false, ok and passed_on))
  end
  a = a + 3
end
return statuses
