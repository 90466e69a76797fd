-- trade: take locks and drop locks, each on its own account.
--
-- All that a sidecar asks at one time is one script: to begin another one costs Redis
-- as much as a lock that is taken and dropped.
--
-- KEYS     the locks, HASH {owner field: entries}, in this order:
--          those that are taken, with one entry and one token;
--          those that are set otherwise;
--          those that are dropped;
--          those that are taken again, which may be among the dropped;
--          then, for each that is not dropped, its token counter, STRING
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
-- ARGV[2]  lease of what is taken, ms
-- ARGV[3]  floor: tokens of this connection are above it; µs
-- ARGV[4]  how many are taken
-- ARGV[5]  how many are set
-- ARGV[6]  how many are dropped
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
-- or one error for all, some of which may have been carried out.
--
-- What may fail (wrong type, memory, a read-only replica, permissions) is called
-- by pcall and before the lock is written. A plain call would end all of it, and
-- lose the code of the error in Redis 6.2. And what may fail for want of memory comes
-- first: a script that has written is granted more. What is taken again needs no more
-- than what was dropped before.
--
-- Nearly every lock that is taken is free, and nearly every one that is dropped is as it
-- was left: that is what this script costs.

local prefix, lease, floor = ARGV[1], ARGV[2], tonumber(ARGV[3])
local lookEvery = 32 -- tokens between two looks at the expiry of their counter
local ask = redis.pcall

local function listeners(channel)
  local heard = ask('PUBSUB', 'NUMSUB', channel)
  return heard.err and -1 or heard[2]
end

local function channelOf(counter)
  return 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
end

-- earlier tells whether a field is ours, of this hold or of one before.
local function earlier(field, num)
  local n = string.sub(field, 1, #prefix) == prefix and string.match(field, '^%d+$', #prefix + 1)
  return n and tonumber(n) <= tonumber(num)
end

-- A counter that was drawn from is new, or behind the floor, or to be looked at; or
-- that failed. Returns the last token, or an error.
--
-- One that is new or lags behind the floor may have lost what it once was: deleted,
-- flushed, or read from a replica that is behind. It goes on from the time in µs. That
-- is above every token ever drawn, because a counter starts at the time and is drawn
-- from more slowly than once per µs: a round trip takes longer than the tokens it
-- reserves.
local function settled(counter, last, n)
  local week = 7 * 24 * 3600 * 1000
  local refresh = 6.5 * 24 * 3600 * 1000 -- half a day of use between two refreshes
  if type(last) == 'table' then return nil, last.err end
  if last >= 2 ^ 53 then return nil, 'ERR token counter ' .. counter .. ' is above 2^53: delete it' end
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
  else
    -- A counter without an expiry was made by somebody who wants it to stay.
    local left = redis.call('PTTL', counter)
    if left >= 0 and left < refresh then redis.call('PEXPIRE', counter, week) end
  end
  return last
end

-- A lock that is not free. Returns its field if that is ours and may be replaced, and
-- who listens; or else what is to be answered.
local function held(lock, counter, num, fields)
  if type(fields) == 'table' then return nil, nil, fields.err end
  local heard = listeners(channelOf(counter))
  -- A plain lock has one field. More are another structure under our name.
  if fields > 1 then
    local what = 'a hash with ' .. fields .. ' fields'
    local mode = redis.call('HGET', lock, 'mode')
    if mode then what = 'a read-write lock in mode ' .. string.sub(mode, 1, 16) end
    return nil, nil, {redis.call('PTTL', lock), what, heard}
  end
  local old = redis.call('HKEYS', lock)[1]
  if not earlier(old, num) then return nil, nil, {redis.call('PTTL', lock), string.sub(old, 1, 256), heard} end
  -- Before the rest. Redis grants it when it is out of memory, too, and lets a script
  -- that has begun to write go on: what is ours can be kept and passed on.
  local expires = ask('PEXPIRE', lock, lease)
  if expires ~= 1 then return nil, nil, expires.err end
  return old, heard
end

local function take(lock, counter, num, entries, draw, move, free)
  local old, heard, answer
  if not free then
    local fields = ask('HLEN', lock)
    if fields ~= 0 then
      old, heard, answer = held(lock, counter, num, fields)
      if answer then return answer end
    elseif move then
      return -1
    end
  end

  local last = 0
  if draw ~= '0' then
    last = ask('INCRBY', counter, draw) -- a number would be printed for Redis, digit by digit
    local n = draw + 0
    if type(last) == 'table' or last - n < floor or last >= 2 ^ 53 or last % lookEvery < n then
      last, answer = settled(counter, last, n)
      if answer then return answer end
    end
  end

  local field = prefix .. num
  local written = ask('HSET', lock, field, entries)
  if old then
    if written ~= 0 and written ~= 1 then return written.err end
    if old ~= field then redis.call('HDEL', lock, old) end
    return {last, heard}
  end
  if written ~= 1 then return written.err end
  local expires = ask('PEXPIRE', lock, lease)
  if expires ~= 1 then
    -- PEXPIRE alone is not permitted. The lock must not stay for ever.
    redis.call('DEL', lock)
    return expires.err
  end
  -- A lock that was taken for one client is not passed on before more tokens are
  -- drawn; until then nobody needs to know who waits elsewhere.
  if draw == '1' then return last end
  return {last, listeners(channelOf(counter))}
end

local function drop(lock, num, channel)
  -- A key that has this field and no other is gone with it. Should somebody have built
  -- another structure around our field, theirs is left, and who wakes finds it.
  local gone = ask('HDEL', lock, prefix .. num)
  if gone ~= 1 then
    if gone ~= 0 then return gone.err end
    local fields = redis.call('HLEN', lock)
    if fields > 1 then return -3 end
    -- No field at all: it may have expired a moment ago, which nobody was told of.
    if fields == 1 then
      if not earlier(redis.call('HKEYS', lock)[1], num) then return -3 end
      local deleted = ask('DEL', lock)
      if deleted ~= 1 then return deleted.err end
    end
  end
  -- The only payload that Redisson takes for "unlocked".
  local heard = ask('PUBLISH', channel, '0')
  if heard == 0 then return 0 end
  if type(heard) == 'table' then return -2 end
  -- Who listens to a pattern has heard it, too, and does not wait for the lock.
  return listeners(channel)
end

local takes, sets, drops = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local all = (#KEYS + drops) / 2
local statuses = {}
local a, counter = 7, all

local function takeEach(first, last)
  -- Nearly always they are free, which Redis says of many keys at once.
  local free = first <= last and ask('EXISTS', unpack(KEYS, first, last)) == 0
  for i = first, last do
    counter = counter + 1
    statuses[i] = take(KEYS[i], KEYS[counter], ARGV[a], '1', '1', false, free)
    a = a + 1
  end
end

takeEach(1, takes)
for i = takes + 1, takes + sets do
  counter = counter + 1
  statuses[i] = take(KEYS[i], KEYS[counter], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3] == '1', false)
  a = a + 4
end
for i = takes + sets + 1, takes + sets + drops do
  statuses[i] = drop(KEYS[i], ARGV[a], ARGV[a + 1])
  a = a + 2
end
takeEach(takes + sets + drops + 1, all)
return statuses
