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
-- was left. That is the loop at the end, and what this script costs; all else is made
-- when it is needed, for a function costs something before it is called.

local prefix, lease, floor = ARGV[1], ARGV[2], tonumber(ARGV[3])
local takes, sets, drops = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local ask = redis.pcall
local lookEvery = 32 -- tokens between two looks at the expiry of their counter

local rare
local function rarely(what, ...)
  if rare then return rare[what](...) end
  rare = {}

  -- earlier tells whether a field is ours, of this hold or of one before.
  local function earlier(field, num)
    local n = string.sub(field, 1, #prefix) == prefix and string.match(field, '^%d+$', #prefix + 1)
    return n and tonumber(n) <= tonumber(num)
  end

  -- How many listen on a channel; -1: that is not permitted to be known.
  local function listeners(channel)
    local heard = ask('PUBSUB', 'NUMSUB', channel)
    return heard.err and -1 or heard[2]
  end

  -- The same of a lock, by its counter.
  function rare.waiting(counter)
    return listeners('redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1))
  end

  -- A lock that is taken and not known to be free. Returns what is to be answered, or
  -- nothing if it may be taken; then its field, if that is ours, and who listens.
  function rare.held(lock, counter, num, move)
    local fields = ask('HLEN', lock)
    if type(fields) == 'table' then return fields.err end
    if fields == 0 then return move and -1 end
    local heard = rare.waiting(counter)
    -- A plain lock has one field. More are another structure under our name.
    if fields > 1 then
      local what = 'a hash with ' .. fields .. ' fields'
      local mode = redis.call('HGET', lock, 'mode')
      if mode then what = 'a read-write lock in mode ' .. string.sub(mode, 1, 16) end
      return {redis.call('PTTL', lock), what, heard}
    end
    local old = redis.call('HKEYS', lock)[1]
    if not earlier(old, num) then return {redis.call('PTTL', lock), string.sub(old, 1, 256), heard} end
    -- Before the rest. Redis grants it when it is out of memory, too, and lets a script
    -- that has begun to write go on: what is ours can be kept and passed on.
    local expires = ask('PEXPIRE', lock, lease)
    if expires ~= 1 then return expires.err end
    return nil, old, heard
  end

  -- A counter that was drawn from is new, or behind the floor, or to be looked at; or
  -- that failed. Returns what is to be answered, or nothing and the last token.
  --
  -- One that is new or lags behind the floor may have lost what it once was: deleted,
  -- flushed, or read from a replica that is behind. It goes on from the time in µs. That
  -- is above every token ever drawn, because a counter starts at the time and is drawn
  -- from more slowly than once per µs: a round trip takes longer than the tokens it
  -- reserves.
  function rare.drawn(counter, last, n)
    local week = 7 * 24 * 3600 * 1000
    local refresh = 6.5 * 24 * 3600 * 1000 -- half a day of use between two refreshes
    if type(last) == 'table' then return last.err end
    if last >= 2 ^ 53 then return 'ERR token counter ' .. counter .. ' is above 2^53: delete it' end
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
    return nil, last
  end

  -- Our field was not there. Returns what is to be answered, or nothing if the lock is
  -- given back all the same.
  function rare.astray(lock, num, gone)
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

  -- Somebody heard of a release, or nobody may. Who listens to a pattern hears it, too,
  -- and does not wait for the lock.
  function rare.heard(channel, heard)
    if type(heard) == 'table' then return -2 end
    return listeners(channel)
  end

  return rare[what](...)
end

local statuses = {}
local all = (#KEYS + drops) / 2
local lastDrop = takes + sets + drops
local free = false
local counters, a = all, 7
for i = 1, all do
  local lock, num = KEYS[i], ARGV[a]
  local status, old, heard, last
  a = a + 1
  if i > takes + sets and i <= lastDrop then
    -- A key that has this field and no other is gone with it. Should somebody have built
    -- another structure around our field, theirs is left, and who wakes finds it.
    local channel, gone = ARGV[a], ask('HDEL', lock, prefix .. num)
    a = a + 1
    if gone ~= 1 then status = rarely('astray', lock, num, gone) end
    if not status then
      status = ask('PUBLISH', channel, '0') -- the only payload that Redisson takes for "unlocked"
      if status ~= 0 then status = rarely('heard', channel, status) end
    end
  else
    local entries, draw, move = '1', '1', false
    counters = counters + 1
    if i > takes and i <= takes + sets then
      entries, draw, move = ARGV[a], ARGV[a + 1], ARGV[a + 2] == '1'
      a = a + 3
      free = false
    elseif i == 1 then
      free = ask('EXISTS', unpack(KEYS, 1, takes)) == 0 -- of many keys at once
    elseif i == lastDrop + 1 then
      free = ask('EXISTS', unpack(KEYS, i, all)) == 0
    end
    if not free then
      status, old, heard = rarely('held', lock, KEYS[counters], num, move)
    end
    if not status and draw ~= '0' then
      last = ask('INCRBY', KEYS[counters], draw)
      local n = draw + 0 -- INCRBY got the text: a number would be printed for Redis, digit by digit
      if type(last) == 'table' or last - n < floor or last >= 2 ^ 53 or last % lookEvery < n then
        status, last = rarely('drawn', KEYS[counters], last, n)
      end
    end
    if not status then
      local field = prefix .. num
      local written = ask('HSET', lock, field, entries)
      local expires = old or written == 1 and ask('PEXPIRE', lock, lease)
      if type(written) == 'table' then
        status = written.err
      elseif old then
        if old ~= field then redis.call('HDEL', lock, old) end
        status = {last or 0, heard}
      elseif expires ~= 1 then
        -- PEXPIRE alone is not permitted. The lock must not stay for ever.
        redis.call('DEL', lock)
        status = expires.err
      elseif draw == '1' then
        -- A lock that was taken for one client is not passed on before more tokens are
        -- drawn; until then nobody needs to know who waits elsewhere.
        status = last
      else
        status = {last or 0, rarely('waiting', KEYS[counters])}
      end
    end
  end
  statuses[i] = status
end
return statuses
