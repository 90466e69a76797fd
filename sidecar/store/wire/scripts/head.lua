-- head: take or drop one lock that is free, or as this sidecar left it, and that has no queue. Nearly every
-- lock is. Most runs for a near Redis have one lock, and nearly all in a Cluster, where a run has locks of one
-- slot. Here such a run needs none of the functions and lists of the script, which are half of its cost.
--
-- Where this text does not return, the script goes on, and does not repeat what was executed here:
--   found      how many keys there are: of the lock, if it is taken, and its queue
--   drawn      the last token of the counter
--   gone       how many fields the drop deleted
--   receivers  how many clients received the release
-- Each is the reply of Redis, also an error; nil or false: there is none.

local ask, keys, args = redis.pcall, KEYS, ARGV -- Redis finds locals faster than globals
local field, terms, lease = args[1], args[2], args[3]
local takes, sets, drops, given, declared, sharded, f1, f2, f3, f4, f5, f6, f7 = string.byte(terms, 1, 13)
local publish, numsub = 'PUBLISH', 'NUMSUB'
if sharded == 1 then publish, numsub = 'SPUBLISH', 'SHARDNUMSUB' end
local unlocked = '0' -- the only payload that Redisson takes for a release

local found, drawn, gone, receivers
if #args == 2 then -- one lock is dropped
  local lock, queue, channel = keys[1], keys[2], nil
  if given % 2 == 1 then
    queue, channel = queue or 'locksidecar_queue::' .. lock, 'redisson_lock__channel:' .. lock
  else
    queue, channel = queue or 'locksidecar_queue:{' .. lock .. '}', 'redisson_lock__channel:{' .. lock .. '}'
  end
  found = ask('EXISTS', queue)
  gone = found == 0 and ask('HDEL', lock, field)
  receivers = gone == 1 and ask(publish, channel, unlocked)
  if receivers == 0 then return 0 end
end

local floor = f1 + f2 * 2 ^ 8 + f3 * 2 ^ 16 + f4 * 2 ^ 24 + f5 * 2 ^ 32 + f6 * 2 ^ 40 + f7 * 2 ^ 48
if #args == 3 and takes == 1 then -- one is taken
  local lock, counter, queue = keys[1], keys[2], keys[3]
  queue = queue or (given % 2 == 1 and 'locksidecar_queue::' .. lock or 'locksidecar_queue:{' .. lock .. '}')
  found = ask('EXISTS', lock, queue)
  drawn = found == 0 and ask('INCRBY', counter, '1')
  if type(drawn) == 'number' and drawn > floor and drawn < 2 ^ 53 then
    local left = ask('PTTL', counter)
    local expiry = left ~= -1 and string.match(terms, '^%d+', 14) + 0
    if left == -1 or expiry > 0 and type(left) == 'number' and left >= expiry / 14 * 13 then
      ask('HSET', lock, field, '1') -- if that is refused, there is no key that could expire
      if ask('PEXPIRE', lock, lease) == 1 then return drawn end
    end
  end
end

local first -- the hold number of the first lock
args[1], first = string.match(field, '^(.*:)(%d+)$') -- the prefix of the owner fields is where all scripts have it
