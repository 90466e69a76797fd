-- acquire_release: take locks and drop locks, each independently of the others.
--
-- All operations that a sidecar sends at one time are one script: to begin another one
-- costs Redis as much as to take and drop a lock.
--
-- KEYS     the locks, in this order:
--          those that are taken, with one entry and one token;
--          those that are set in another way;
--          those that are dropped;
--          those that are dropped and taken again, with one entry and one token;
--          then, for each that is not only dropped, its token counter, STRING
-- ARGV[1]  prefix of this sidecar's owner fields
-- ARGV[2]  how many are taken
-- ARGV[3]  how many are set
-- ARGV[4]  how many are dropped
-- ARGV[5]  lease of what is not dropped, ms
-- ARGV[6]  floor: tokens of this connection are above it; µs
-- ARGV[7]  birth: the first token of a new counter is above it, and above Redis's clock; µs
-- ARGV[8]  expiry of a counter after its last use, ms; 0: counters do not expire
-- ARGV[9…] for each lock, in the order of KEYS: hold number, decimal, below 2^53; and
--          if it is set: entries of the hold; how many tokens to draw, 0 draws none; "1":
--          only move a lock that is ours already to this hold, never take a free one
--          if it is dropped, with this hold or an earlier one: channel
--          if it is dropped and taken again: channel; hold number of the new hold
--
-- Returns for each lock, and for a lock that is dropped and taken again first for the drop
-- and then for the take,
-- a take   n >= 0          it is ours; n: the last token drawn, or 0
--          n < -1          it is ours; -n: the last token drawn; its counter did not exist
--          {n, listeners}  the same, and the subscribers were counted; -1: that is not permitted
--          -1              there is no such key (of a lock that is only to be moved)
--          {PTTL, owner field or a description, listeners}
--                          it is not ours; nothing was changed
-- a drop   n >= 0          our field is gone, or was before; published; n clients subscribe
--          -1              the same; to count the subscribers is not permitted
--          -2              the same; to publish is not permitted
--          -3              the key has another owner's field, or a later one of ours
-- either   {description}   the key is of another type; nothing was changed
--          "CODE text"     the error of Redis for this lock alone; the lock is as it was,
--                          except for the lease of one that is ours already, and for the
--                          entries of one that is taken again with the number that it has
--
-- Commands that may fail (wrong type, memory, a read-only replica, permissions) run before
-- the lock is written. Commands that may fail for lack of memory also run before the
-- drops: once a script has written anything, Redis no longer enforces maxmemory for it. A
-- lock that is taken again needs no more memory than it had.
--
-- Nearly every lock that is taken is free, and nearly every lock that is dropped is as
-- this sidecar left it. These two cases are the cost of this script.

local lease, floor, birth, expiry = ARGV[5], ARGV[6] + 0, ARGV[7] + 0, ARGV[8]
local ask = redis.pcall

local function take(lock, counter, num, entries, draw, move, free)
  local fields, old, listeners = 0, nil, nil
  if not free then
    fields = ask('HLEN', lock)
    if fields == 0 and move then return -1 end
  end
  if fields ~= 0 or draw ~= '1' then
    -- A lock that was taken for one client is not passed on before more tokens are
    -- drawn. Until then the sidecar does not need the number of subscribers.
    local channel = 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
    listeners = ask('PUBSUB', 'NUMSUB', channel)
    listeners = listeners.err and -1 or listeners[2]
  end
  if fields ~= 0 then
    local other, no_hash
    old, other, no_hash = owner(lock, fields, num)
    if no_hash then return {other} end
    if not old then return {redis.call('PTTL', lock), other, listeners} end
    -- The expiry first: Redis permits PEXPIRE when it is out of memory, and after it this
    -- script may write. So a lock of ours can be kept and passed on.
    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then return expires.err end
  end

  -- Tokens keep increasing after FLUSHALL and failover. A counter that is new or below the
  -- floor may have lost its value: it was deleted or flushed, or it is that of a replica
  -- that lags. It continues from Redis's
  -- clock in µs, or from birth if that is later. That is above every token that this
  -- sidecar knows: a counter starts at the time, and grows by less than one per µs,
  -- because a round trip takes longer than the tokens that it draws.
  local last, made = 0, false
  if draw ~= '0' then
    last = ask('INCRBY', counter, draw)
    local n = draw + 0 -- INCRBY got the text: Redis would format a number digit by digit
    if type(last) == 'table' then return last.err end
    if last >= 2 ^ 53 then return 'ERR token counter ' .. counter .. ' is above 2^53: delete it' end
    if last - n < floor then
      local time = redis.call('TIME')
      made = last == n
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
    else
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
    end
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
  return listeners and {last, listeners} or last
end

local unlocked = '0' -- the only payload that Redisson takes for a release

-- The status of a drop whose PUBLISH returned receivers, which is not 0.
local function count_listeners(channel, receivers)
  if type(receivers) == 'table' then return -2 end
  -- A client that subscribes to a pattern received the message, too, and does not wait
  -- for the lock.
  local listeners = ask('PUBSUB', 'NUMSUB', channel)
  return listeners.err and -1 or listeners[2]
end

local function drop(lock, num, channel)
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
  local receivers = ask('PUBLISH', channel, unlocked)
  return receivers == 0 and 0 or count_listeners(channel, receivers)
end

local takes, sets, drops = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local locks = (#KEYS + drops) / 2
local statuses = {}
local counters, n, a = locks, 0, 9
local function note(ok, status)
  if not ok and type(status) == 'table' then status = status.err end
  n = n + 1
  statuses[n] = status
end

-- Nearly always all locks that are taken are free. One command finds that out for all.
local free = takes > 1 and ask('EXISTS', unpack(KEYS, 1, takes)) == 0
local again = takes + sets + drops + 1
for i = 1, again - 1 do
  local lock, num = KEYS[i], ARGV[a]
  if i > takes + sets then
    note(pcall(drop, lock, num, ARGV[a + 1]))
    a = a + 2
  else
    counters = counters + 1
    if i <= takes then
      note(pcall(take, lock, KEYS[counters], num, '1', '1', false, free))
      a = a + 1
    else
      note(pcall(take, lock, KEYS[counters], num, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3] == '1', false))
      a = a + 4
    end
  end
end
if again > locks then return statuses end

-- Drops and takes a lock by changing only its field: to delete the key and make it again
-- costs Redis more than all the rest, and no other host could have taken it in between.
-- Returns the token. If the lock is not exactly as this sidecar left it, it returns
-- nothing and has changed nothing; then drop and take follow.
--
-- The expiry of the counter needs no look: the take before this one refreshed it.
local function retake(lock, counter, old, num)
  if ask('HLEN', lock) ~= 1 then return end
  local last = ask('INCRBY', counter, '1')
  if type(last) == 'table' then return end
  if last - 1 >= floor and last < 2 ^ 53 and ask('HSET', lock, prefix .. num, '1') == 1 then
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
  if last == 1 then ask('DEL', counter) else ask('INCRBY', counter, '-1') end
end

for i = again, locks do
  counters = counters + 1
  local lock, num, channel, later = KEYS[i], ARGV[a], ARGV[a + 1], ARGV[a + 2]
  a = a + 3
  local last = retake(lock, KEYS[counters], num, later)
  if last then
    local receivers = ask('PUBLISH', channel, unlocked)
    if receivers ~= 0 then receivers = count_listeners(channel, receivers) end
    statuses[n + 1], statuses[n + 2] = receivers, last
    n = n + 2
  else
    note(pcall(drop, lock, num, channel))
    note(pcall(take, lock, KEYS[counters], later, '1', '1', false, false))
  end
end
return statuses
