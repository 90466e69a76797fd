-- trade: take locks and drop locks, each on its own account.
--
-- All that a sidecar asks at one time is one script: to begin another one costs Redis
-- as much as a lock that is taken and dropped.
--
-- KEYS     the locks, HASH {owner field: entries}, in this order:
--          those that are taken, with one entry and one token;
--          those that are set otherwise;
--          those that are dropped;
--          those that are taken again right behind a drop, with one entry and one token;
--          then, for each that is not dropped, its token counter, STRING
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  how many are taken
-- ARGV[3]  how many are set
-- ARGV[4]  how many are dropped
-- ARGV[5]  lease of what is not dropped, ms
-- ARGV[6]  floor: tokens of this connection are above it; µs
-- ARGV[7…] for each lock, in the order of KEYS: hold number, decimal, below 2^53; and
--          if it is set: entries of the hold; how many tokens to draw, 0 draws none; "1":
--          only move a lock that is ours already to this hold, never take a free one
--          if it is dropped, and its hold may be an earlier one, too: channel
--
-- Returns for each
-- a take   n >= 0          it is ours; n: the last token drawn, or 0
--          {n, listeners}  the same, and who listens was counted; -1: that is not permitted
--          -1              there is no such key (of one to be moved)
--          {PTTL, owner field or a description, listeners}
--                          it is somebody else's; nothing was changed
-- a drop   n >= 0          our field is gone, or was before; published; n listen
--          -1              the same; to count who listens is not permitted
--          -2              the same; to publish is not permitted
--          -3              the key has somebody else's field, or a later one of ours
-- either   "CODE text"     the error of Redis for this one alone; the lock is as it was,
--                          but for the lease of one that is ours already
--
-- What may fail (wrong type, memory, a read-only replica, permissions) comes before the
-- lock is written. And what may fail for want of memory comes before what is dropped: a
-- script that has written is granted more. What is taken again needs no more than what
-- was dropped before.
--
-- Nearly every lock that is taken is free, and nearly every one that is dropped is as it
-- was left: that is what this script costs.

local prefix, lease, floor = ARGV[1], ARGV[5], ARGV[6] + 0
local ask = redis.pcall -- an error that is raised would lose its code in Redis 6.2

local function take(lock, counter, num, entries, draw, move, free, again)
  local fields, old, heard = 0, nil, nil
  if not free then
    fields = ask('HLEN', lock)
    if type(fields) == 'table' then return fields.err end
    if fields == 0 and move then return -1 end
  end
  if fields ~= 0 or draw ~= '1' then
    -- A lock that was taken for one client is not passed on before more tokens are
    -- drawn; until then nobody needs to know who waits elsewhere.
    local channel = 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
    heard = ask('PUBSUB', 'NUMSUB', channel)
    heard = heard.err and -1 or heard[2]
  end
  if fields ~= 0 then
    -- A plain lock has one field. More are another structure under our name.
    if fields > 1 then
      local what = 'a hash with ' .. fields .. ' fields'
      local mode = redis.call('HGET', lock, 'mode')
      if mode then what = 'a read-write lock in mode ' .. string.sub(mode, 1, 16) end
      return {redis.call('PTTL', lock), what, heard}
    end
    old = redis.call('HKEYS', lock)[1] or ''
    local n = string.sub(old, 1, #prefix) == prefix and string.match(old, '^%d+$', #prefix + 1)
    if not n or tonumber(n) > tonumber(num) then
      return {redis.call('PTTL', lock), string.sub(old, 1, 256), heard}
    end
    -- Before the rest. Redis grants it when it is out of memory, too, and lets a script
    -- that has begun to write go on: what is ours can be kept and passed on.
    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then return expires.err end
  end

  -- Tokens. A counter that is new or lags behind the floor may have lost what it once
  -- was: deleted, flushed, or read from a replica that is behind. It goes on from the
  -- time in µs. That is above every token ever drawn, because a counter starts at the
  -- time and is drawn from more slowly than once per µs: a round trip takes longer than
  -- the tokens it reserves.
  local last = 0
  if draw ~= '0' then
    last = ask('INCRBY', counter, draw)
    local n = draw + 0 -- INCRBY got the text: a number would be printed for Redis, digit by digit
    if type(last) == 'table' then return last.err end
    if last >= 2 ^ 53 then return 'ERR token counter ' .. counter .. ' is above 2^53: delete it' end
    local week = 7 * 24 * 3600 * 1000
    local refresh = 6.5 * 24 * 3600 * 1000 -- half a day of use between two refreshes of the expiry
    if last - n < floor then
      local time = redis.call('TIME')
      local fresh = last == n
      last = math.max(time[1] * 1000000 + time[2], floor) + n
      local text = string.format('%.0f', last)
      if fresh then
        redis.call('SET', counter, text, 'PX', week)
      else
        redis.call('SET', counter, text, 'KEEPTTL')
      end
    elseif not again then
      -- A counter without an expiry was made by somebody who wants it to stay. A take
      -- right behind a drop follows another one, which has looked.
      local left = redis.call('PTTL', counter)
      if left >= 0 and left < refresh then redis.call('PEXPIRE', counter, week) end
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
      -- PEXPIRE alone is not permitted. The lock must not stay for ever.
      redis.call('DEL', lock)
      return expires.err
    end
  end
  return heard and {last, heard} or last
end

local function drop(lock, num, channel)
  -- A key that has this field and no other is gone with it. Should somebody have built
  -- another structure around our field, theirs is left, and who wakes finds it.
  local gone = ask('HDEL', lock, prefix .. num)
  if gone == 0 then
    local fields = redis.call('HLEN', lock)
    if fields > 1 then return -3 end
    -- No field at all: it may have expired a moment ago, which nobody was told of.
    if fields == 1 then
      local field = redis.call('HKEYS', lock)[1] or ''
      local n = string.sub(field, 1, #prefix) == prefix and string.match(field, '^%d+$', #prefix + 1)
      if not n or tonumber(n) > tonumber(num) then return -3 end
      gone = ask('DEL', lock)
    end
  end
  if type(gone) == 'table' then return gone.err end
  -- The only payload that Redisson takes for "unlocked".
  local heard = ask('PUBLISH', channel, '0')
  if heard == 0 then return 0 end
  if type(heard) == 'table' then return -2 end
  -- Who listens to a pattern has heard it, too, and does not wait for the lock.
  heard = ask('PUBSUB', 'NUMSUB', channel)
  return heard.err and -1 or heard[2]
end

local takes, sets, drops = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local lastDrop = takes + sets + drops
local all = (#KEYS + drops) / 2
local statuses = {}
local counters, a, free = all, 7, false
for i = 1, all do
  local ok, status
  if i > takes + sets and i <= lastDrop then
    ok, status = pcall(drop, KEYS[i], ARGV[a], ARGV[a + 1])
    a = a + 2
  else
    counters = counters + 1
    if i > takes and i <= takes + sets then
      ok, status = pcall(take, KEYS[i], KEYS[counters], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3] == '1', false, false)
      a = a + 4
    else
      if i == 1 or i == lastDrop + 1 then
        local last = i > takes and all or takes
        free = last > i and ask('EXISTS', unpack(KEYS, i, last)) == 0 -- which Redis says of many at once
      end
      ok, status = pcall(take, KEYS[i], KEYS[counters], ARGV[a], '1', '1', false, free, i > takes)
      a = a + 1
    end
  end
  if not ok and type(status) == 'table' then status = status.err end
  statuses[i] = status
end
return statuses
