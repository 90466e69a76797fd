-- tokens: draw fencing tokens, and count the clients that subscribe to a lock's channel.
--
-- The words policy.…, code.…, wait.…, recall.… and subscribers.… stand for numbers, in texts too. The
-- numbers are put in when the script is loaded: see script_text.go.
--
-- draw(counter, n)            draws n tokens, a decimal. Returns the last one, and whether there was no
--                             counter; or nil and the status of a refused operation
-- count_subscribers(channel)  returns how the subscribers of a lock's channel were counted, and how many
--                             there are
--
-- In a Cluster, the channel of a lock is a sharded one, in the slot of the lock, if the server has
-- these. A sidecar's is not.
--
-- Tokens keep increasing after FLUSHALL and failover. A counter that is new or below the floor may
-- have lost its value: it was deleted or flushed, or it is that of a replica that lags. It
-- continues from Redis's clock in µs, or from birth if that is later. That is above every token
-- that this sidecar knows: a counter starts at the time, and grows by less than one per µs,
-- because a round trip takes longer than the tokens that it draws. The floor may also be above
-- all counters, see pipeline.askClock: those that are ahead of the clock stay.

local function count_subscribers(channel, kind)
  local reply = ask('PUBSUB', kind or numsub, channel)
  if reply.err then return subscribers.uncountable, 0 end
  return subscribers.counted, reply[2]
end

local function draw(counter, n)
  local last = drawn or ask('INCRBY', counter, n)
  n = n + 0 -- INCRBY got the text: Redis would format a number digit by digit
  if type(last) == 'table' then return nil, {code.refused, last.err} end
  if last >= 2 ^ 53 then
    return nil, {code.refused, 'ERR token counter ' .. counter .. ' is above 2^53: delete it'}
  end
  if last - n < floor then
    local time = redis.call('TIME')
    local expiry, birth = string.match(terms, '^(%d+) (%d+)', 14)
    local made = last == n
    last = math.max(last, math.max(time[1] * 1000000 + time[2], birth) + n)
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
    if type(left) == 'table' then return nil, {code.refused, left.err} end
    local expiry = string.match(terms, '^%d+', 14)
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
