-- rw: set how this host has a read/write lock, shared or for itself, and where it waits.
--
-- The lock is the HASH of Redisson's RReadWriteLock:
--   mode           "read" or "write"
--   <uuid>         the claim of a host: "<number> r <expiry, ms of Redis's clock>", or, of a writer, "<number> w 0"
--   locksidecar:0  "1", while hosts share the lock: a reader to Redisson, which takes for one each field with a number.
--                  With a brace in the key: locksidecar:1
--   locksidecar    "<claims> <due> <until> <begin>": how many hosts share it; no claim has expired before due; until is
--                  when the STRING ends; both ms. Who came before begin, µs, may still join this phase
--   others         a writer or readers of Redisson
--
-- A STRING, <tag>:locksidecar:0:rwlock_timeout:1, is there while hosts share the lock, and has until. So Redisson's last
-- reader leaves them the HASH; and after a program deletes the HASH, no sidecar writes: the next HASH has a claim of no host, until
-- then.
--
-- Hosts that wait are in a ZSET of readers and a ZSET of writers, by uuid: the scores are when they arrived, µs of Redis's
-- clock. A HASH has, for "<uuid>:r" and "<uuid>:w", "<number> <lease, ms> <asked, s of Redis's clock>".
--
-- Phases alternate. While a writer waits, no other host is given a share. When the last reader leaves, the first
-- writer gets the lock; when a writer leaves, all readers that wait, and without any the next writer.
--
-- A host has one claim, and one place of each kind, at most. Each operation says all that the host is to have, under a
-- number above all that it has used, and changes nothing that has a higher one. A place that is admitted leaves
-- its number to the claim.
--
-- KEYS     for each lock, which is there once: the HASH, the STRING, the token counter, readers, writers, the second HASH.
--          Of r of a share: HASH and STRING, each three times. Of r of a writer, and of c: the HASH six times, so that they need
--          one key while the slot of a Cluster moves
-- ARGV[1]  uuid of this sidecar, and a colon
-- ARGV[2]  terms, as for main.lua: of the counts and flags only 4; sharded; floor; expiry; birth; origin
-- ARGV[…]  for each: "<what> <number> <keep> <want> <stands> <lease, ms> <tokens> <arrived, µs>"
--   what:    t  the host has keep, and otherwise want if that is free
--            m  after t: it is not to have lost keep, otherwise it gets it back if it is free
--            y  after these: if others wait, what it has beyond keep is for them, and it waits behind them
--            d  it has nothing, and does not wait
--            r  what it has is renewed; c  and checked
--   keep, want: r: it shares the lock; w: it has it for itself; n: neither
--   stands:  where it waits if it has not got that: r, w, b: both, n: nowhere
--   arrived: of the place for want. 0: now, or as it stands
--
-- Returns for each the status:
--   0               it is as the operation says, of d, r and c; of d, no host waits
--   the last token  the host has what it wants, and no host waits
--   {code.shares, 0: it has nothing, 1: it shares, 2: it writes, the last token, 0: none was drawn, 1: there was no
--     counter, how many hosts wait, 1 if some may still join this phase}
--   {code.away, 0: free, 1: others share the lock, 2: another has it, how many hosts share it, ms until a claim may end,
--     owner field or '', where this host waits: 0, 1: as a reader, 2: as a writer, 3: both; hosts before it in the queue for
--     want, or all that are in that, when a request arrives now, µs, recall.…}
--                   it has not got want; it has keep
--   {code.missing}  it has not got keep, and does not get it back
--   {code.later}    there is a claim or a place of this host with a higher number; nothing was changed
--   {code.held, PTTL, owner field or description, subscribers.uncounted, 0}, {code.not_a_lock,
--     description}  something else is there; nothing was changed
--   {code.refused, "CODE text" of Redis}

local ask, keys, args = redis.pcall, KEYS, ARGV -- Redis finds locals faster than globals
local match, format, max, min = string.match, string.format, math.max, math.min
local terms, uuid = args[2], string.sub(args[1], 1, -2)
local _, _, _, given, _, sharded, f1, f2, f3, f4, f5, f6, f7 = string.byte(terms, 1, 13)
local floor = f1 + f2 * 2 ^ 8 + f3 * 2 ^ 16 + f4 * 2 ^ 24 + f5 * 2 ^ 32 + f6 * 2 ^ 40 + f7 * 2 ^ 48
local publish, numsub, drawn = 'PUBLISH', 'NUMSUB', nil
if sharded == 1 then publish, numsub = 'SPUBLISH', 'SHARDNUMSUB' end

-- The head, for one operation as nearly all are, needs none of the functions below: no host waits, and the lock is free, or shared
-- and this host wants a share, or gives up what it has. What it leaves half done, because Redis refuses a command, the rest finds
-- and completes, or takes back.
if #keys == 6 then
  local lock, arg, status = keys[1], args[3], nil
  if string.byte(arg) == 100 then -- d
    local number, have = match(arg, '^d (%d+)'), ask('HMGET', lock, 'mode', 'locksidecar', uuid)
    local own, m = match(have[3] or '', '^(%d+) ([rw]) %d+$')
    local claims, numbers = match(have[2] or '', '^(%d+)( %d+ %d+ %d+)$')
    if own and (#own < #number or #own == #number and own <= number) and ask('EXISTS', keys[4], keys[5]) == 0 then
      if m == 'w' and have[1] == 'write' then
        status = ask('DEL', lock) == 1 and '1'
      elseif m == 'r' and have[1] == 'read' and claims == '1' then
        status = ask('HLEN', lock) == 4 and type(ask('DEL', lock, keys[2])) == 'number' and '0'
      elseif m == 'r' and have[1] == 'read' and claims and #claims < 10 and claims ~= '0' then
        if ask('HSET', lock, 'locksidecar', claims - 1 .. numbers) == 0 and ask('HDEL', lock, uuid) == 1 then return {0} end
      end
      if status then
        ask(publish, 'redisson_rwlock:' .. string.sub(keys[3], #'redisson_lock_token:' + 1), status)
        return {0}
      end
    end
  else
    local number, want, stands, lease = match(arg, '^t%l* (%d+) n ([rw]) (%l) (%d+) 1 ')
    if stands ~= 'n' and stands ~= want then number = nil end -- it waits for the other mode, too
    local claims, due, till, begin = '0', nil, nil, nil
    if number and ask('EXISTS', lock, keys[2], keys[4], keys[5]) ~= 0 then
      local have = want == 'r' and ask('EXISTS', keys[4], keys[5]) == 0 and ask('HMGET', lock, 'mode', 'locksidecar', uuid)
      if have and have[1] == 'read' and have[2] and not have[3] then claims, due, till, begin = match(have[2], '^(%d+) (%d+) (%d+) (%d+)$') else number = nil end
    end
    if number and claims and #claims < 10 and (claims == '0') == not due then
      local token = ask('INCRBY', keys[3], '1')
      drawn = token
      local left = type(token) == 'number' and token > floor and token < 2 ^ 53 and ask('PTTL', keys[3])
      local kept = left == -1 or match(terms, '^%d+', 14) + 0
      local lasts = kept == true or kept > 0 and type(left) == 'number' and left >= kept / 14 * 13
      local time = lasts and (want == 'w' or ask('TIME'))
      if want == 'w' and time then
        status = ask('HSET', lock, 'mode', 'write', uuid, number .. ' w 0')
        if type(status) == 'number' and ask('PEXPIRE', lock, lease) == 1 then return {token} end
      elseif time and time[2] then
        local ms = math.floor(time[1] * 1000 + time[2] / 1000)
        local expiry, longer = format('%.0f', ms + lease), math.floor(lease * 1.5)
        if due == nil or #till == #expiry and till >= expiry and #due == #expiry then
          if not due then till, begin = format('%.0f', ms + longer), '0' end
          if not due or expiry < due then due = expiry end
          local reader = string.find(lock, '{', 1, true) and 'locksidecar:1' or 'locksidecar:0'
          local set = ask('HSET', lock, 'mode', 'read', reader, '1', 'locksidecar', claims + 1 .. ' ' .. due .. ' ' .. till .. ' ' .. begin, uuid, number .. ' r ' .. expiry)
          if type(set) ~= 'number' then
            -- Redis refuses it.
          elseif claims == '0' then
            status = ask('SET', keys[2], till, 'PX', format('%.0f', longer)).ok and ask('PEXPIRE', lock, format('%.0f', longer)) == 1
          else
            local lives = ask('PTTL', lock) -- a reader of Redisson sets its own
            status = type(lives) == 'number' and ms + lives + 2 >= till + 0 -- ms are rounded
          end
          if status then return {token} end
        end
      end
    end
  end
end

-- ^ before the shared files ^

-- Of the operation that is executed:
local lock, life, counter, queues, asks
local queued                   -- whether hosts wait
local reader                   -- the field by which all sidecars are one reader
local mode                     -- of the HASH; nil: there is none
local claims, due, till, begin -- as in the HASH; due nil: there is no claim
local ends                     -- until when the HASH lasts, ms; nil: that was not asked
local full                     -- whether it has admitted as many readers as one operation may
local got, last, made          -- what a place of this host was admitted to, and the tokens that were drawn for it
local gone                     -- what Redisson is notified of: "0": the last reader left; "1": a writer left, or reads now

local function now_ms() return math.floor(now() / 1000) end

-- The claim in a text: number, r or w, and expiry, ms; or nothing.
local function claim_in(text)
  if type(text) == 'string' then return match(text, '^(%d+) ([rw]) (%d+)$') end
end

-- The place of a host: number, lease, asked; or nothing.
local function place_of(host, m)
  local text = ask('HGET', asks, host .. ':' .. m)
  if type(text) == 'string' then return match(text, '^(%d+) (%d+) (%d+)$') end
end

local function leave(host, m)
  write('ZREM', queues[m], host)
  write('HDEL', asks, host .. ':' .. m)
end

local function waiting(m)
  local n = queued and ask('ZCARD', queues[m])
  return type(n) == 'number' and n or 0
end

-- Where this host waits: its rank, or nil.
local function rank_of(m)
  local rank = queued and ask('ZRANK', queues[m], uuid)
  return type(rank) == 'number' and rank or nil
end

-- How many others wait.
local function others(m) return waiting(m) - (rank_of(m) and 1 or 0) end

local function summary() return format('%d %.0f %.0f %.0f', claims, due, till, begin) end

-- Has the HASH last for so long, ms. One that cannot expire would never be free.
local function outlive(lasts)
  local expires = ask('PEXPIRE', lock, format('%.0f', lasts))
  if expires ~= 1 then
    if claims <= 1 and (ends or 0) == 0 then redis.call('DEL', lock, life) end
    error(expires)
  end
  ends = now_ms() + lasts
end

-- Gives a host a share. is_new: it has none; otherwise the STRING is made again, if it was deleted. STRING and HASH last
-- for as long as any share.
local function share(host, number, is_new, lease)
  local expiry, was = now_ms() + lease, till
  local shared = not mode and redis.call('GET', life)
  if shared then -- by hosts, when the HASH was deleted
    local ended = tonumber(shared) or 0
    if ended > now_ms() then
      claims, due, till = claims + 1, ended, ended
      redis.call('HSET', lock, '00000000-0000-0000-0000-000000000000', format('0 r %.0f', ended))
    end
  end
  if till < expiry then till = now_ms() + math.floor(lease * 1.5) end -- the next ones need no other expiry
  if is_new then claims = claims + 1 end
  due = min(due or expiry, expiry)
  redis.call('HSET', lock, 'mode', 'read', reader, '1', 'locksidecar', summary(), host, format('%s r %.0f', number, expiry))
  if till ~= was or not is_new then
    local lives = ask('SET', life, format('%.0f', till), 'PX', format('%.0f', till - now_ms()))
    if lives.err then
      if not mode then redis.call('DEL', lock) end
      error(lives)
    end
  end
  if mode == 'read' and not ends then
    local left = redis.call('PTTL', lock) -- a reader of Redisson sets its own
    ends = left < 0 and 0 or now_ms() + left + 2 -- ms are rounded
  end
  mode = 'read'
  if not ends or ends < till then outlive(till - now_ms()) end
end

-- Gives a host the lock for itself.
local function exclude(host, number, lease)
  redis.call('HSET', lock, 'mode', 'write', host, number .. ' w 0')
  ends = nil
  outlive(lease + 0)
  mode = 'write'
end

-- The next host that waits in a queue, without those that have not asked for too long: uuid, number, lease, when
-- it arrived; or nothing. looks: how many to look at.
local function next_of(m, looks)
  for i = queued and looks or 0, 1, -1 do
    local first = ask('ZRANGE', queues[m], '0', '0', 'WITHSCORES')
    local host, arrived = first[1], tonumber(first[2])
    if not host then return end
    local number, lease, asked = place_of(host, m)
    if not number or #host ~= 36 then
      leave(host, m)
    elseif host ~= uuid and now() - max(arrived, asked * 1000000) > policy.max_silence_us then
      leave(host, m)
      send(host .. ':' .. number, 'requeue', string.sub(host, 15, 15) == '8' and number .. ' ' .. lock or lock)
    else
      return host, number, lease, arrived, i
    end
  end
end

-- No host shares the lock any more. Returns true if it is free: Redisson has no reader either.
local function close()
  redis.call('HDEL', lock, reader, 'locksidecar')
  redis.call('DEL', life)
  claims, due, till, begin = 0, nil, 0, 0
  if redis.call('HLEN', lock) > 1 then return false end
  redis.call('DEL', lock)
  mode, ends, gone = nil, nil, '0'
  return true
end

-- Draws tokens for what passes on. Returns the last one, and whether there was no counter; or nothing: Redis refuses that.
local function draw_for(n)
  local token, is_made = draw(counter, n)
  if token then return token, is_made end
  if string.find(is_made[2], 'READONLY', 1, true) then error({err = is_made[2]}) end -- see write
end

-- Gives readers that wait a share, those that came until then; nil: all. Returns true if the lock is shared then.
local function admit_readers(came)
  local looks, admitted, token, is_made = policy.max_offers, {}, nil, nil
  while looks > 0 and #admitted < policy.max_readers do
    local host, number, lease, arrived, left = next_of('r', looks)
    if not host or came and arrived > came then break end
    if not mode and type(ask('EXISTS', lock)) == 'table' then break end -- its slot is on its way: the HASH can be made no more
    if not token then
      token, is_made = draw_for('1')
      if not token then return false end
    end
    looks = left - 1
    leave(host, 'r')
    local is_new = mode ~= 'read' or redis.call('HEXISTS', lock, host) == 0
    share(host, number, is_new, lease + 0)
    if host == uuid then
      got, last, made = 'r', token, is_made
    else
      admitted[#admitted + 1] = {host, number, lease, is_new}
    end
  end
  full = looks <= 0 or #admitted >= policy.max_readers
  for _, a in ipairs(admitted) do
    local host, number, lease, is_new = unpack(a)
    local message = format('r %s 1 %.0f 1 %s %d ', number, token, lease, waiting('w'))
    if send(host .. ':' .. number, 'admit', message .. lock) == 0 and is_new then
      redis.call('HDEL', lock, host) -- no connection has received that, so nothing would use it
      claims = claims - 1
    end
  end
  if not token then return false end
  if claims == 0 then
    close()
    return mode ~= nil
  end
  redis.call('HSET', lock, 'locksidecar', summary())
  return true
end

-- Gives the lock to the first writer that receives that. Returns true if one has it.
local function admit_writer()
  if ask('EXISTS', life) ~= 0 then return false end -- hosts share it, and the HASH was deleted
  local looks, token, is_made = policy.max_offers, nil, nil
  while looks > 0 do
    local host, number, lease, _, left = next_of('w', looks)
    if not host or type(ask('EXISTS', lock)) == 'table' then return false end -- see admit_readers
    if not token then
      token, is_made = draw_for('policy.passed_tokens')
      if not token then return false end
    end
    looks = left - 1
    leave(host, 'w')
    exclude(host, number, lease)
    if host == uuid then
      got, last, made = 'w', token, is_made
      return true
    end
    local message = format('r %s 2 %.0f policy.passed_tokens %s %d ', number, token, lease, waiting('w') + waiting('r'))
    if send(host .. ':' .. number, 'admit', message .. lock) > 0 then return true end
    redis.call('DEL', lock) -- no connection has received that
    mode, ends = nil, nil
  end
  return false
end

-- Gives a free lock to those that wait. after: r: readers had it, or it is not known who; w: a writer.
local function pass(after)
  if after == 'r' and admit_writer() then return end
  begin = now()
  if not admit_readers() then admit_writer() end
end

-- While the lock is shared: gives a share to readers that came before this phase, and to all if no writer waits.
local function join()
  if waiting('r') == 0 then return end
  if not next_of('w', policy.max_offers) then admit_readers() elseif begin > 0 then admit_readers(begin) end
end

-- Counts all claims, and removes those of others that have expired.
local function prune()
  local all = redis.call('HGETALL', lock)
  claims, due = 0, nil
  local ended = {'-'} -- which is not there, and permits the script to write in a Redis that is full
  for i = 1, #all, 2 do
    if #all[i] == 36 then
      local _, m, expiry = claim_in(all[i + 1])
      if m ~= 'r' or expiry + 0 <= now_ms() and all[i] ~= uuid then
        ended[#ended + 1] = all[i]
      else
        claims, due = claims + 1, min(due or expiry + 0, expiry + 0)
      end
    end
  end
  for _, host in ipairs(ended) do redis.call('HDEL', lock, host) end
  if claims == 0 then close() else redis.call('HSET', lock, 'locksidecar', summary()) end
end

-- Takes what this host has.
local function release(own_mode)
  if own_mode == 'w' then
    redis.call('DEL', lock)
    mode, ends, gone = nil, nil, '1'
    return pass('w')
  end
  redis.call('HDEL', lock, uuid)
  claims = claims - 1
  if claims > 0 then
    redis.call('HSET', lock, 'locksidecar', summary())
  elseif redis.call('HLEN', lock) > 3 then
    prune() -- programs read on; or claims was changed by hand
  else
    close()
  end
  if mode then join() else pass('r') end
end
-- Has the hosts that have the lock give it back, if their clients do not use it.
local function call_back()
  local reached, asked = 0, 0
  for _, host in ipairs(ask('HKEYS', lock)) do
    if #host == 36 and host ~= uuid and asked < policy.max_recalls then -- the others are asked when these have left
      reached, asked = reached + send(host .. ':0', 'return', 'r ' .. lock), asked + 1
    end
  end
  return reached > 0 and recall.received or recall.missed
end

-- Redis's clock, but later than the arrival of each other host, µs: see queue.lua.
local function arrival(m)
  local latest = ask('ZRANGE', queues[m], '-1', '-1', 'WITHSCORES')
  local after = tonumber(latest[2]) or 0
  if latest[1] and latest[1] ~= uuid then after = after + 1 end
  return min(max(now(), after), 2 ^ 53)
end

-- Gives this host a place, or leaves it the one that it has.
local function enqueue(m, number, lease, arrived)
  local arrives = arrival(m)
  queued = true
  local place = format('%s %s %d', number, lease, math.floor(now() / 1000000))
  if rank_of(m) then write('PEXPIRE', asks, 'policy.queue_expiry_ms') end -- a place that stands needs no memory
  if type(write('HSET', asks, uuid .. ':' .. m, place)) == 'table' then return end
  ask('PEXPIRE', asks, 'policy.queue_expiry_ms')
  if arrived ~= '0' then
    write('ZADD', queues[m], format('%.0f', min(arrived, arrives)), uuid)
  else
    write('ZADD', queues[m], 'NX', format('%.0f', arrives), uuid)
  end
  ask('PEXPIRE', queues[m], 'policy.queue_expiry_ms')
end

-- The status of an operation after which this host has m, r, w or n.
local function has(m, what)
  local wait = others('w') + (m == 'r' and 0 or others('r'))
  local rest = 0
  if queued and mode == 'read' then
    local first = ask('ZRANGE', queues.r, '0', '0', 'WITHSCORES')
    if first[1] and full and (first[2] + 0 <= begin or waiting('w') == 0) then rest = 1 end
  end
  if wait == 0 and rest == 0 and not made then
    if what == 'd' then return 0 end
    if last and got == nil then return last end
  end
  return {code.shares, m == 'n' and 0 or m == 'r' and 1 or 2, last or 0, made and 1 or 0, wait, rest}
end

-- The field of a writer, or what is there instead.
local function holder()
  if mode ~= 'write' then return 'a read-write lock in mode read' end
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if #field == 36 then return field .. ':' .. (claim_in(redis.call('HGET', lock, field)) or '0') end
    if field ~= 'mode' then return string.sub(field, 1, 256) end
  end
  return ''
end

-- Sets what this host has, see above. Returns the status.
local function set(what, number, keep, want, stands, lease, tokens, arrived)
  reader = string.find(lock, '{', 1, true) and 'locksidecar:1' or 'locksidecar:0'
  got, last, made, ends, gone, full = nil, nil, nil, nil, nil, nil
  local have = ask('HMGET', lock, 'mode', 'locksidecar', uuid, reader)
  if have.err and string.sub(have.err, 1, 9) ~= 'WRONGTYPE' then -- this user has no HMGET
    for i, field in ipairs({'mode', 'locksidecar', uuid, reader}) do have[i] = redis.call('HGET', lock, field) end
    have.err = nil
  end
  mode = have[1] or nil
  local is_kind, is_single = mode == 'read' or mode == 'write', what == 'r' or what == 'c'
  if not is_kind and (have.err or redis.call('EXISTS', lock) > 0) then
    local fields = have.err and have or redis.call('HLEN', lock)
    if what == 'd' then
      for _, m in ipairs({'r', 'w'}) do
        if (place_of(uuid, m) or 0) + 0 <= number + 0 then leave(uuid, m) end
      end
      return 0
    end
    local _, other, no_lock = owner(lock, fields, '0')
    if no_lock and not is_single then return {code.not_a_lock, other} end
    if not other then return {code.missing} end
    return {code.held, redis.call('PTTL', lock), other, subscribers.uncounted, 0}
  end
  if not is_kind then mode = nil end
  local own, own_mode = claim_in(have[3])
  if own and own + 0 > number + 0 then return {code.later} end
  if own and (own_mode == 'r') ~= (mode == 'read') then own, own_mode = nil, nil end
  local c, d, u, b = match(mode == 'read' and have[2] or '', '^(%d+) (%d+) (%d+) (%d+)$')
  claims, due, till, begin = (c or 0) + 0, tonumber(d), (u or 0) + 0, (b or 0) + 0
  if max(claims, due or 0, till, begin) >= 2 ^ 53 then claims, due, till, begin = 0, nil, 0, 0 end
  if claims < 1 and mode == 'read' and (own_mode or have[2] or have[4]) and (not is_single or what == 'r' and own_mode == 'r') then
    prune() -- it was changed by hand
  end

  if is_single then
    if own_mode ~= keep then
      if mode and (keep == 'w' or mode == 'write') then return {code.held, redis.call('PTTL', lock), holder(), subscribers.uncounted, 0} end
      return {code.missing}
    end
    if what == 'r' and keep == 'r' then
      redis.call('HDEL', lock, '-') -- Redis permits it when it is out of memory, and the script may write then
      share(uuid, own, false, lease + 0)
    elseif what == 'r' then
      redis.call('PEXPIRE', lock, lease)
    end
    if own == number then return 0 end
    return {code.shares, keep == 'r' and 1 or 2, 0, 0, 0, 0}
  end

  local place = {}
  queued = ask('EXISTS', queues.r, queues.w) ~= 0
  if queued then
    for _, m in ipairs({'r', 'w'}) do
      place[m] = place_of(uuid, m)
      if place[m] and place[m] + 0 > number + 0 then return {code.later} end
    end
  end
  local goal = keep ~= 'n' and keep or want
  local is_downgrade = goal == 'r' and own_mode == 'w'
  if keep ~= 'n' and own_mode ~= keep and not is_downgrade and (own_mode or want ~= 'n' or string.find(what, 'm', 1, true)) then return {code.missing} end
  if queued then next_of('w', policy.max_offers) end -- one that is silent keeps no host waiting
  if due and now_ms() >= due and (goal == 'w' or waiting('w') > 0) then prune() end
  local writers, readers = others('w'), others('r')

  local is_granted = goal == 'n'
  if goal == 'n' then
    -- It has nothing.
  elseif own_mode == goal then
    is_granted = keep == goal or not (string.find(what, 'y', 1, true) and writers + readers > 0) and (goal == 'w' or writers == 0)
  elseif is_downgrade then
    is_granted = true
  elseif own_mode then -- a share, and it wants to write
    is_granted = keep == 'n' and claims == 1 and writers + readers == 0 and redis.call('HLEN', lock) == 4
  elseif goal == 'r' then
    is_granted = keep == 'r' and mode ~= 'write' or writers == 0 and (mode == 'read' or not mode and readers == 0)
  else
    is_granted = not mode and (keep == 'w' or writers + readers == 0) and ask('EXISTS', life) == 0
  end
  local is_lost = keep ~= 'n' and not is_granted -- its places stay as they are
  if is_granted and goal ~= 'n' then
    if own_mode then redis.call('HDEL', lock, '-') end -- see above
    if tokens ~= '0' then
      last, made = draw(counter, tokens)
      drawn = nil
      if not last then return made end
    end
    if goal == 'r' then
      if is_downgrade then begin, gone = now(), '1' end
      share(uuid, number, own_mode ~= 'r', lease + 0)
    else
      if own_mode == 'r' then redis.call('DEL', lock, life) end
      exclude(uuid, number, lease)
    end
  end

  -- Where it waits from now on. That comes before the lock passes on, so that its readers join a phase that its
  -- own writer's release begins.
  local is_met = is_granted and (want == 'n' or want == goal and not (keep == 'r' and writers > 0))
  for _, m in ipairs(is_lost and {} or {'r', 'w'}) do
    if (stands == m or stands == 'b') and not (is_met and want == m) then
      enqueue(m, number, lease, m == want and arrived or '0')
    elseif place[m] then
      leave(uuid, m)
    end
  end
  local wanted = want ~= 'n' and want or goal
  local arrives = arrival(wanted == 'n' and 'r' or wanted)

  if given >= 4 and not own_mode and not place.r and not place.w and stands == 'n' and (goal == 'n' or not is_granted) then
    redis.call('HSET', lock, uuid, '0') -- for the replicas: see drop.lua
    redis.call('HDEL', lock, uuid)
  end
  if own_mode and (goal == 'n' or not is_granted) then
    release(own_mode)
  elseif not mode then
    pass('r')
  elseif mode == 'read' then
    join()
  end
  if gone and mode ~= 'write' then
    ask(publish, 'redisson_rwlock:' .. string.sub(counter, #'redisson_lock_token:' + 1), gone)
  end
  if is_lost then return {code.missing} end -- a place from before may have been admitted, to less or for a shorter time
  if got or is_met then return has(got or goal, what) end

  local phase, left, field = 0, -1, ''
  if mode == 'read' then
    phase, left = 1, due and max(due - now_ms(), 0) or redis.call('PTTL', lock)
  elseif mode then
    phase, left, field = 2, redis.call('PTTL', lock), holder()
  else
    left = redis.call('PTTL', life)
  end
  local at = {r = rank_of('r'), w = rank_of('w')}
  local is_first = at.w == 0 or at.r == 0 and mode == 'write'
  local recalled = is_first and mode and call_back() or recall.none
  return {code.away, phase, claims, left, field, (at.r and 1 or 0) + (at.w and 2 or 0), at[wanted] or waiting(wanted), arrives, recalled}
end

local statuses = {}
for i = 1, #keys / 6 do
  local words = {}
  for word in string.gmatch(args[i + 2], '%S+') do words[#words + 1] = word end
  lock, life, counter, asks = keys[6 * i - 5], keys[6 * i - 4], keys[6 * i - 3], keys[6 * i]
  queues = {r = keys[6 * i - 2], w = keys[6 * i - 1]}
  local ok, status = pcall(set, unpack(words))
  if not ok then status = {code.refused, type(status) == 'table' and status.err or status} end
  statuses[i] = status
end
return statuses
