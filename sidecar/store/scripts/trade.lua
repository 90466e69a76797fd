-- trade: take locks and drop locks, each on its own account.
--
-- All that a sidecar asks at one time is one script: to begin another one costs Redis
-- as much as a lock that is taken and dropped.
--
-- KEYS     the locks, HASH {owner field: entries}, in this order:
--          those that are taken, with one entry and one token;
--          those that are set otherwise;
--          those that are dropped;
--          those that are dropped and taken again, with one entry and one token;
--          then, for each that is not only dropped, its token counter, STRING
-- ARGV[1]  prefix of this sidecar's owner fields: "<uuid>:"
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
--          if it is dropped, and its hold may be an earlier one, too: channel
--          if it is dropped and taken again: channel; hold number then
--
-- Returns for each, and for a lock that is dropped and taken again first of the one and
-- then of the other,
-- a take   n >= 0          it is ours; n: the last token drawn, or 0
--          n < -1          it is ours; -n: the last token drawn; its counter was not there
--          {n, listeners}  the same, and who listens was counted; -1: that is not permitted
--          -1              there is no such key (of one to be moved)
--          {PTTL, owner field or a description, listeners}
--                          it is not ours; nothing was changed
-- a drop   n >= 0          our field is gone, or was before; published; n listen
--          -1              the same; to count who listens is not permitted
--          -2              the same; to publish is not permitted
--          -3              the key has somebody else's field, or a later one of ours
-- either   {description}   the key is of another type; nothing was changed
--          "CODE text"     the error of Redis for this one alone; the lock is as it was,
--                          but for the lease of one that is ours already; and for its
--                          entries, if it is taken again with the number that it has
--
-- What may fail (wrong type, memory, a read-only replica, permissions) comes before the
-- lock is written. And what may fail for want of memory comes before what is dropped: a
-- script that has written is granted more. What is taken again needs no more than it
-- had.
--
-- Nearly every lock that is taken is free, and nearly every one that is dropped is as it
-- was left: that is what this script costs.

local prefix, lease, floor, birth, expiry = ARGV[1], ARGV[5], ARGV[6] + 0, ARGV[7] + 0, ARGV[8]
local ask = redis.pcall -- an error that is raised would lose its code in Redis 6.2

-- The status of a lock for which a command for hashes failed with err.
local function failed(lock, err)
  if string.sub(err, 1, 9) ~= 'WRONGTYPE' then return err end
  return {'a key of type ' .. (ask('TYPE', lock).ok or 'unknown') .. ', which is not a lock'}
end

local function take(lock, counter, num, entries, draw, move, free)
  local fields, old, heard = 0, nil, nil
  if not free then
    fields = ask('HLEN', lock)
    if type(fields) == 'table' then return failed(lock, fields.err) end
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
  -- was: deleted, flushed, or read from a replica that is behind. It goes on from
  -- Redis's clock in µs, or from birth if that is later. That is above every token that
  -- this sidecar knows of, because a counter starts at the time and is drawn from more
  -- slowly than once per µs: a round trip takes longer than the tokens it reserves.
  local last, made = 0, false
  if draw ~= '0' then
    last = ask('INCRBY', counter, draw)
    local n = draw + 0 -- INCRBY got the text: a number would be printed for Redis, digit by digit
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
      -- PEXPIRE alone is not permitted. The lock must not stay for ever.
      redis.call('DEL', lock)
      return expires.err
    end
  end
  if made then last = -last end
  return heard and {last, heard} or last
end

local unlocked = '0' -- the only payload that Redisson takes for that

-- What became of a release that somebody has heard, or nobody may.
local function told(channel, heard)
  if type(heard) == 'table' then return -2 end
  -- Who listens to a pattern has heard it, too, and does not wait for the lock.
  heard = ask('PUBSUB', 'NUMSUB', channel)
  return heard.err and -1 or heard[2]
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
  if type(gone) == 'table' then return failed(lock, gone.err) end
  local heard = ask('PUBLISH', channel, unlocked)
  return heard == 0 and 0 or told(channel, heard)
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

-- Nearly always all are free, which Redis says of many at once.
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

-- A lock that is dropped and taken again only changes its field: to delete the key and
-- make it anew costs Redis more than all else, and nobody could have had it meanwhile.
-- Returns the token; or nothing, if that was not all, and then drop and take see to it,
-- as if this had not been tried.
--
-- The expiry of the counter is not looked at: this follows a take that did.
local function retake(lock, counter, old, num)
  if ask('HLEN', lock) ~= 1 then return end
  local last = ask('INCRBY', counter, '1')
  if type(last) == 'table' then return end
  if last - 1 >= floor and last < 2 ^ 53 and ask('HSET', lock, prefix .. num, '1') == 1 then
    if ask('HDEL', lock, prefix .. old) ~= 1 then
      ask('HDEL', lock, prefix .. num)
    else
      if ask('PEXPIRE', lock, lease) == 1 then return last end
      -- PEXPIRE alone is not permitted. The lock is dropped, and take returns the error.
      ask('DEL', lock)
    end
  end
  -- The draw is undone: take judges the counter as it was. One that was not there, or
  -- was 0, which is the same, is made by take as it is to be.
  if last == 1 then ask('DEL', counter) else ask('INCRBY', counter, '-1') end
end

for i = again, locks do
  counters = counters + 1
  local lock, num, channel, later = KEYS[i], ARGV[a], ARGV[a + 1], ARGV[a + 2]
  a = a + 3
  local last = retake(lock, KEYS[counters], num, later)
  if last then
    local heard = ask('PUBLISH', channel, unlocked)
    if heard ~= 0 then heard = told(channel, heard) end
    statuses[n + 1], statuses[n + 2] = heard, last
    n = n + 2
  else
    note(pcall(drop, lock, num, channel))
    note(pcall(take, lock, KEYS[counters], later, '1', '1', false, false))
  end
end
return statuses
