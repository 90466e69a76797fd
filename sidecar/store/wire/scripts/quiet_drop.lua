-- quiet_drop: drop one lock that is as this sidecar left it and that no host waits for, in a Cluster: see
-- quiet_take.lua. Anything else is left to drop.lua: the answer is "busy" then, and nothing was changed.
--
-- KEYS     the lock; its queue
-- ARGV[1]  the owner field
-- ARGV[2]  the channel of the lock
-- ARGV[3]  1: it is a sharded one
--
-- Returns the status of the drop, as drop.lua has it, or the status "busy".

local ask, lock, channel = redis.pcall, KEYS[1], ARGV[2]
local publish, numsub = 'PUBLISH', 'NUMSUB'
if ARGV[3] == '1' then publish, numsub = 'SPUBLISH', 'SHARDNUMSUB' end
if ask('EXISTS', KEYS[2]) ~= 0 or ask('HDEL', lock, ARGV[1]) ~= 1 then return redis.status_reply('busy') end
local receivers = ask(publish, channel, '0') -- the only payload that Redisson takes for a release
if receivers == 0 then return 0 end
if type(receivers) == 'table' then return {code.dropped, subscribers.unpublished, 0} end
local reply = ask('PUBSUB', numsub, channel)
if reply.err then return {code.dropped, subscribers.uncountable, 0} end
return {code.dropped, subscribers.counted, reply[2]}
