-- permits: set how many permits of a semaphore this host has, and for how many it waits.
--
-- A semaphore of which a host has permits is a HASH:
--   mode    "permits <held> <due> <until> <last>": the permits of all hosts; no claim has expired before
--           due, and the HASH lasts until, ms of Redis's clock; and the last token
--   <uuid>  the claim of a host: "<number> <permits> <expiry, ms of Redis's clock>"
-- It has no capacity: each request names one. Free is what the capacity has beyond the claims that
-- have not expired. So a host that dies keeps nothing, and no number can be stuck.
--
-- The hosts that wait are a ZSET, by uuid: its scores are when they arrived, µs of Redis's clock. A
-- HASH has, for each of them, "<number> <permits> <capacity> <lease, ms> <asked, s of Redis's clock>".
-- Permits go to them in this order. One whose permits are not free stops those behind it.
--
-- A host has one claim and one place at most. Each operation says all that the host is to have, under a
-- number above all that it has used, and changes nothing that has a higher one. Executed late, after a
-- Drop, it may make a claim again, until that expires, or a place: the host gives back what it is
-- admitted to and does not know. A place that is admitted leaves its number to the claim.
--
-- Tokens are later than Redis's clock, µs, and than the last one. They are drawn more slowly than one in a
-- microsecond (see tokens.lua), so a semaphore that was free needs to remember none.
--
-- KEYS     for each semaphore, which is there once: the HASH, the ZSET, the second HASH; of r and c the first
--          HASH three times, so that they need one key while the slot of a Cluster moves
-- ARGV[1]  uuid of this sidecar, and a colon
-- ARGV[2]  terms, as for main.lua: of the counts and flags only 4; birth; origin
-- ARGV[…]  for each: "<what> <number>", and what follows after a space each, without those at the end that
--          are as usual: keep 0, want 0, capacity 0, lease 0 ms, times 1, tokens 1, arrived 0 µs
--   what:  t  the host has keep permits, and then want more, once or up to so many times, if they are free
--          q  after t: otherwise it waits for want permits, and has no more than keep. If it alone has permits, and
--             wants more than there are, it waits for itself, and has no place
--          y  after these: what it has beyond keep is for hosts that wait before it; p: if its place stands, or was for
--             a request that arrived before
--          m  after these: it is not to have lost any of keep; otherwise it gets them back if they are free
--          d  it has none, and does not wait
--          r  what it has is renewed; c  and checked
--   arrived: of a place, 0: now, or when it arrived before. Otherwise it moves there, before any permits are given out
--
-- Returns for each the status:
--   0               it is as the operation says, of d, r and c; of d, no host waits
--   the last token  the host has keep and want permits, and no host waits
--   {code.permitted, permits that the host has, the last token, 0: none was drawn, how many hosts wait}
--   {code.wanted, permits of all hosts, ms until a claim may expire, 1 if the host has a place, hosts
--     before it, or, without one, that wait, when a request arrives now, µs, recall.…}
--                   want is not free; the host has keep
--   {code.missing}  it has less than keep, or there is no claim to renew; nothing was changed
--   {code.later}    there is a claim or a place of this host with a higher number; nothing was changed
--   {code.held, PTTL, owner field or description, subscribers.uncounted, 0}, {code.not_a_lock,
--     description}  something else is there; nothing was changed
--   {code.refused, "CODE text" of Redis}

local ask, keys, args = redis.pcall, KEYS, ARGV -- Redis finds locals faster than globals
local match, format, max, min = string.match, string.format, math.max, math.min
local terms, uuid = args[2], string.sub(args[1], 1, -2)
local birth = match(terms, '^%d+ (%d+)', 14) + 0
local statuses, rest = {}, false -- rest: some have no status yet

-- The head, for what nearly all are, needs none of the functions below: no host waits, the permits are free, the HASH
-- lasts long enough, what this host has is as it knows, and this user has HMGET. What is otherwise has no status after it,
-- and nothing of it was changed. Large numbers stay texts: to read or write one costs half of a command. Those of one length
-- are compared as texts.
do
  local byte, sub = string.byte, string.sub
  local n, takes, is_free, taken = #keys / 3, 0, false, nil
  local kind = byte(args[3])
  local timed = kind ~= 100 -- not d
  if n == 1 and kind == 116 then -- without lists; t
    is_free = ask('EXISTS', keys[1], keys[2]) == 0
    rest = not is_free and ask('EXISTS', keys[2]) ~= 0
  elseif n == 1 then
    rest = kind == 100 and ask('EXISTS', keys[2]) ~= 0
  else
    local places, hashes = {}, {}
    for i = 1, n do
      kind = byte(args[i + 2])
      timed = timed or kind ~= 100
      if kind == 116 then hashes[#hashes + 1] = keys[3 * i - 2] end
      if kind == 116 or kind == 100 then places[#places + 1] = keys[3 * i - 1] end
    end
    takes = #hashes
    rest = #places > 0 and ask('EXISTS', unpack(places)) ~= 0
    is_free = not rest and takes > 0 and ask('EXISTS', hashes[1]) == 0 and ask('EXISTS', unpack(hashes)) == 0
    taken = {}
  end
  local time = timed and not rest and ask('TIME')
  local now, ms, ms_text, token
  if time and time[2] then
    now = max(time[1] * 1000000 + time[2], birth) + 1
    ms = math.floor(time[1] * 1000 + time[2] / 1000)
    ms_text, token = format('%.0f', ms), format('%.0f', now)
  end
  rest = rest or timed and not now
  -- What follows the number in the argument that was last met: most of a batch have the same. When a claim for its lease
  -- ends, that claim without its number, the mode of a HASH that has no other one, and for how long that lasts.
  local wish, keep, want, capacity, expiry, claim, alone, lasts
  for i = 1, rest and 0 or n do
    local lock, arg, done = keys[3 * i - 2], args[i + 2], nil
    kind = byte(arg)
    if kind == 100 then -- d
      local number, have = sub(arg, 3), ask('HMGET', lock, 'mode', uuid)
      local held, others = match(have[1] or '', '^permits (%d+)( %d+ %d+ %d+)$')
      local own, had = match(have[2] or '', '^(%d+) (%d+) %d+$')
      if not held or not own or #held > 9 or #had > 9 or #own > #number or #own == #number and own > number then
        -- Not usual.
      elseif held == had then
        done = ask('HDEL', lock, uuid, 'mode')
      elseif held + 0 > had + 0 then
        done = ask('HDEL', lock, uuid) == 1 and ask('HSET', lock, 'mode', 'permits ' .. held - had .. others)
      end
      if type(done) == 'number' then done = 0 end
    elseif kind == 116 or kind == 114 then -- t, r
      local number, of = match(arg, '^%l+ (%d+) (.*)$')
      if of ~= wish then
        local lease
        wish = of
        keep, want, capacity, lease = match(of or '', '^(%d+) (%d+) (%d+) (%d+)$')
        if keep then
          keep, want, capacity = keep + 0, want + 0, capacity + 0
          expiry, lasts = format('%.0f', ms + lease), math.floor(lease * 1.5)
          claim = format(' %.0f ', keep + want) .. expiry
          alone = 'permits' .. claim .. format(' %.0f ', ms + lasts) .. (token or '')
          lasts = format('%.0f', lasts)
        end
      end
      if not number or not keep or want == 0 and kind == 116 then
        -- Not usual.
      elseif kind == 116 and is_free and not (taken and taken[lock]) then
        if keep == 0 and want <= capacity then
          if taken then taken[lock] = true end
          local set = ask('HSET', lock, 'mode', alone, uuid, number .. claim)
          if type(set) == 'number' then -- otherwise nothing is to be written before the next attempt: see outlive
            if ask('PEXPIRE', lock, lasts) == 1 then done = now else ask('DEL', lock) end
          end
        end
      else
        local have = ask('HMGET', lock, 'mode', uuid)
        local held, due, ends, last = match(have[1] or '', '^permits (%d+) (%d+) (%d+) (%d+)$')
        local own, had = match(have[2] or '', '^(%d+) (%d+) %d+$')
        had = (had or '0') + 0
        local others = held and held - had
        local is_renewed = kind == 114 and held and own == number and had == keep
        local is_taken = kind == 116 and held and #held < 10 and had < 1e9 and last < '9007199254740000' and (not own or #own < #number or #own == #number and own <= number) and
          had >= keep and others >= 0 and others + keep + want <= capacity
        if (is_renewed or is_taken) and #due == #ms_text and due > ms_text and #ends == #expiry and ends >= expiry and #last == #token then
          if expiry < due then due = expiry end
          if is_taken then last = last < token and token or format('%.0f', last + 1) end
          local set = ask('HSET', lock, 'mode', 'permits ' .. others + keep + want .. ' ' .. due .. ' ' .. ends .. ' ' .. last,
            uuid, number .. claim)
          if type(set) == 'number' then done = is_taken and last + 0 or 0 end
        end
      end
    end
    if type(done) == 'number' then statuses[i] = done else rest = true end
  end
end
if not rest then return statuses end

local given, sharded = string.byte(terms, 4), string.byte(terms, 6)
local numsub = sharded == 1 and 'SHARDNUMSUB' or 'NUMSUB'

-- ^ before the shared files ^

-- Of the operation that is executed:
local lock, wanted, wants
local held, due, ends, last -- as in the HASH; due nil: there is no claim; ends: until
local exists                -- there is a HASH

local function now_ms() return math.floor(now() / 1000) end

-- The claim in a text: number, permits and expiry, ms; or nothing.
local function claim_in(text)
  if type(text) ~= 'string' then return end
  local number, permits, expiry = match(text, '^(%d+) (%d+) (%d+)$')
  permits, expiry = tonumber(permits), tonumber(expiry)
  if permits and expiry and permits < 2 ^ 32 and expiry < 2 ^ 53 then return number, permits, expiry end
end

-- The place of a host: number, permits, capacity, lease, asked; or nothing.
local function place_of(host)
  local text = ask('HGET', wants, host)
  if type(text) == 'string' then return match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$') end
end

local function leave(host)
  write('ZREM', wanted, host)
  write('HDEL', wants, host)
end

local function waiting()
  local n = ask('ZCARD', wanted)
  return type(n) == 'number' and n or 0
end

-- Draws tokens.
local function draw(n)
  last = max(last or 0, now(), birth) + n
  return last
end

-- Writes the HASH, with the claim of a host; claim nil: as it is.
local function store(host, claim)
  local mode = format('permits %d %.0f %.0f %.0f', held, due, ends, last)
  if claim then redis.call('HSET', lock, 'mode', mode, host, claim) else redis.call('HSET', lock, 'mode', mode) end
end

-- Has the HASH last until a claim for a lease ends. The expiry comes first: Redis permits it when it is out of
-- memory, and the script may write then.
local function outlive(lease)
  if not ends or now_ms() + lease > ends then
    local lasts = math.floor(lease * 1.5) -- so that the next claims need no other expiry
    redis.call('PEXPIRE', lock, lasts)
    ends = now_ms() + lasts
  else
    redis.call('HDEL', lock, '-') -- the same, and changes nothing
  end
end

-- Gives a host, which had so many permits, others, for a lease; expiry: they last until then at least, ms.
local function give(host, number, had, permits, lease, expiry)
  expiry = max(now_ms() + lease, expiry or 0)
  local lasts = math.floor(lease * 1.5)
  if exists then outlive(lease) else held, ends = 0, now_ms() + lasts end
  due, last = min(due or expiry, expiry), last or 0
  held = held - had + permits
  store(host, format('%s %d %.0f', number, permits, expiry))
  if not exists then
    local expires = ask('PEXPIRE', lock, lasts)
    if expires ~= 1 then -- only PEXPIRE is not permitted: what does not expire would never be free
      redis.call('DEL', lock)
      error(expires)
    end
    exists = true
  end
end

-- Takes what a host has, and the HASH with the last claim.
local function take_away(host, had)
  if held > had then
    redis.call('HDEL', lock, host)
    held = held - had
    store()
    return
  end
  redis.call('HDEL', lock, host, 'mode')
  exists, held, due, ends = false, 0, nil, nil
end

-- Counts all claims, and removes those of others that have expired; with the last one, the HASH.
local function prune()
  held, due = 0, nil
  local gone = {}
  for _, host in ipairs(redis.call('HKEYS', lock)) do
    local _, permits, expiry = claim_in(redis.call('HGET', lock, host))
    if host ~= 'mode' then
      if not permits or expiry <= now_ms() and host ~= uuid then
        gone[#gone + 1] = host
      else
        held, due = held + permits, min(due or expiry, expiry)
      end
    end
  end
  if not due then
    redis.call('DEL', lock)
    exists, ends = false, nil
    return
  end
  for _, host in ipairs(gone) do redis.call('HDEL', lock, host) end
  if #gone == 0 then redis.call('HDEL', lock, '-') end -- see outlive
  ends, last = ends or 0, last or 0
  store()
end

-- Admits the hosts that wait, in their order, for as long as what they want is free. If this host is one of
-- them, it draws tokens. Returns the permits that it gets, and its last token.
local function admit(tokens)
  local got, own_last = 0, 0
  for _ = 1, policy.max_offers do
    local first = ask('ZRANGE', wanted, '0', '0', 'WITHSCORES')
    local host, arrived = first[1], tonumber(first[2])
    if not host then break end
    local number, permits, capacity, lease, asked = place_of(host)
    if not number or #host ~= 36 or permits + 0 > capacity + 0 then -- it never fits, and others wait behind it
      leave(host)
    elseif host ~= uuid and now() - max(arrived, asked * 1000000) > policy.max_silence_us then
      leave(host)
      send(host .. ':' .. number, 'requeue', string.sub(host, 15, 15) == '8' and number .. ' ' .. lock or lock)
    else
      permits = permits + 0
      if held + permits > capacity + 0 then break end
      if not exists and type(ask('EXISTS', lock)) == 'table' then break end -- its slot is on its way: the HASH can be made no more
      local before = exists and redis.call('HGET', lock, host)
      local _, had, expiry = claim_in(before)
      had = had or 0
      leave(host)
      if host == uuid then
        got, own_last = permits, tokens > 0 and draw(tokens) or 0
        give(host, number, had, had + permits, lease + 0, expiry)
      else
        local drawn = draw(1) -- a place is for one hold
        give(host, number, had, had + permits, lease + 0, expiry)
        local message = format('p %s %d %.0f 1 %s %d ', number, permits, drawn, lease, waiting())
        if send(host .. ':' .. number, 'admit', message .. lock) == 0 then
          -- No connection has received that, so nothing would use them.
          if had > 0 then
            held = held - permits
            store(host, before)
          else
            take_away(host, permits)
          end
        end
      end
    end
  end
  return got, own_last
end

-- Has the hosts that have permits give back those that they do not use.
local function call_back()
  local reached = 0
  for _, host in ipairs(ask('HKEYS', lock)) do
    if host ~= uuid then reached = reached + send(host .. ':0', 'return', 'p ' .. lock) end
  end
  return reached > 0 and recall.received or recall.missed
end

-- Redis's clock, but later than the arrival of each other host, µs: see queue.lua.
local function arrival()
  local latest = ask('ZRANGE', wanted, '-1', '-1', 'WITHSCORES')
  local after = tonumber(latest[2]) or 0
  if latest[1] and latest[1] ~= uuid then after = after + 1 end
  return min(max(now(), after), 2 ^ 53)
end

-- Gives this host a place, or leaves it the one that it has, for what it wants now. Returns how many are
-- before it; or nothing: it has none.
local function enqueue(number, want, capacity, lease, arrived, arrives)
  local place = format('%s %d %d %d %d', number, want, capacity, lease, math.floor(now() / 1000000))
  if type(write('HSET', wants, uuid, place)) == 'table' then return end
  ask('PEXPIRE', wants, 'policy.queue_expiry_ms')
  if arrived ~= '0' then
    write('ZADD', wanted, format('%.0f', min(arrived, arrives)), uuid)
  else
    write('ZADD', wanted, 'NX', format('%.0f', arrives), uuid)
  end
  ask('PEXPIRE', wanted, 'policy.queue_expiry_ms')
  local rank = ask('ZRANK', wanted, uuid)
  return type(rank) == 'number' and rank or nil
end

-- Writes something where nothing is to be changed, for the replicas: see drop.lua.
local function touch()
  if given < 4 then return end
  redis.call('HSET', lock, uuid, '0')
  redis.call('HDEL', lock, uuid)
end

-- Sets what this host has, see above. Returns the status.
local function set(what, number, keep, want, capacity, lease, times, tokens, arrived)
  local mode = ask('HGET', lock, 'mode')
  if type(mode) == 'table' and string.sub(mode.err, 1, 9) ~= 'WRONGTYPE' then error(mode) end
  local text = match(type(mode) == 'string' and mode or '', '^permits ?(.*)$')
  exists, held, due, ends, last = text ~= nil, 0, nil, nil, nil
  local hosts = 0 -- that wait
  if exists then
    hosts = waiting()
  elseif mode or redis.call('EXISTS', lock, wanted) > 0 then
    local fields = type(mode) == 'table' and mode or redis.call('HLEN', lock)
    if fields ~= 0 then
      if what == 'd' then
        if (place_of(uuid) or 0) + 0 <= number + 0 then leave(uuid) end
        return 0
      end
      local _, other, no_lock = owner(lock, fields, '0')
      if no_lock and what ~= 'r' and what ~= 'c' then return {code.not_a_lock, other} end
      if not other then return {code.missing} end
      return {code.held, redis.call('PTTL', lock), other, subscribers.uncounted, 0}
    end
    hosts = waiting()
  end
  local own, had = claim_in(exists and redis.call('HGET', lock, uuid))
  had = had or 0
  if own and own + 0 > number + 0 then return {code.later} end
  if exists then
    local h, d, e, l = match(text, '^(%d+) (%d+) (%d+) (%d+)$')
    held, due, ends, last = tonumber(h), tonumber(d), tonumber(e), tonumber(l)
    if not (held and due and ends and last) or max(held, due, ends, last + 1000000) >= 2 ^ 53 then held, ends, last = nil, nil, nil end
    if not held or held < had or (what ~= 'd' or hosts > 0) and now_ms() >= due then prune() end -- what was changed by hand is counted, too
  end

  if what == 'r' or what == 'c' then
    if had < keep or had == 0 then return {code.missing} end
    if what == 'r' then
      local expiry = now_ms() + lease
      outlive(lease)
      due = min(due, expiry)
      store(uuid, format('%s %d %.0f', own, had, expiry))
    end
    if own == number and had == keep then return 0 end
    return {code.permitted, had, 0, 0}
  end

  local rank, place = false, nil
  if hosts > 0 then
    rank, place = ask('ZRANK', wanted, uuid), place_of(uuid)
    if place and place + 0 > number + 0 then return {code.later} end
    if rank then hosts = hosts - 1 end -- others
  end
  local others = held - had
  if had < keep and (string.find(what, 'm', 1, true) or others + keep > capacity) then return {code.missing} end
  local permits, is_granted = keep, want == 0
  if want > 0 then
    local most = 0 -- times
    local yields = hosts > 0 and (string.find(what, 'y', 1, true) or (rank or arrived ~= '0') and string.find(what, 'p', 1, true))
    if others + keep + want > capacity then
      -- Also what this host has and does not use is too much for a smaller capacity.
    elseif had >= keep + want and not yields then
      most = math.floor((min(had, capacity - others) - keep) / want)
    elseif hosts == 0 or rank == 0 and arrived == '0' then
      most = hosts > 0 and 1 or math.floor((capacity - others - keep) / want)
    end
    if most > 0 then permits, is_granted = keep + want * min(most, times), true end
  end
  local drawn = is_granted and tokens > 0 and draw(tokens) or 0
  if permits > 0 then
    give(uuid, number, had, permits, lease)
  elseif own then
    take_away(uuid, had)
  end
  local arrives, at = 0, nil
  if not is_granted then
    arrives = arrival()
    if string.find(what, 'q', 1, true) and want <= capacity and (hosts > 0 or others > 0) then at = enqueue(number, want, capacity, lease, arrived, arrives) end
  end
  if rank and not at then leave(uuid) end
  if permits == 0 and not own and not rank and not at then touch() end
  if hosts > 0 and (at ~= 0 or arrived ~= '0') then
    local got, own_last = admit(tokens)
    if got > 0 then permits, drawn, is_granted = permits + got, own_last, true end
    hosts = waiting()
    if at and not is_granted then at = ask('ZRANK', wanted, uuid) or nil end
  end
  if is_granted then
    if what == 'd' and hosts == 0 then return 0 end
    return {code.permitted, permits, drawn, hosts}
  end
  local was_called = rank == 0 and had > keep -- when it became the first: it gives back what it freed since
  local recalled = at == 0 and not was_called and call_back() or recall.none
  local left = due and max(due - now_ms(), 0) or -1
  return {code.wanted, held, left, at and 1 or 0, at or hosts, arrives, recalled}
end

for i = 1, #keys / 3 do
  if not statuses[i] then
    local words = {}
    for word in string.gmatch(args[i + 2], '%S+') do words[#words + 1] = word end
    local what, number, keep, want, capacity, lease, times, tokens, arrived = unpack(words)
    lock, wanted, wants = keys[3 * i - 2], keys[3 * i - 1], keys[3 * i]
    tokens = tokens or what == 'd' and 0 or 1
    local ok, status = pcall(set, what, number, (keep or 0) + 0, (want or 0) + 0, (capacity or 0) + 0, (lease or 0) + 0, (times or 1) + 0, tokens + 0, arrived or '0')
    if not ok then status = {code.refused, type(status) == 'table' and status.err or status} end
    statuses[i] = status
  end
end
return statuses
