-- permissions: which commands of the other scripts this user may not execute. Each is tried on a key that
-- no program has, and that is missing before and after it.
--
-- KEYS[1]  that key, of the slot of the probe's lock
-- ARGV[1]  a channel; "": only what no lock can do without is tried
-- ARGV[2]  1: the channels of locks are sharded
--
-- Returns for each command that was refused its name, in lower case, and the error. The list is empty if
-- there is such a key, because then nothing is tried.
--
-- Redis looks whether a command is permitted before it looks at keys, memory and replicas. Before 7.0 it
-- does not say which one is not: so each is tried by itself.

local key, refused = KEYS[1], {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local err = type(reply) == 'table' and reply.err
  if not err then return reply end
  if string.find(err, 'can\'t run this command', 1, true) or string.find(err, 'no permissions to run the', 1, true)
    or string.find(err, 'channel', 1, true) -- the command is permitted, and its channel is not
    or string.find(err, 'Unknown Redis command', 1, true) then -- it was renamed
    refused[#refused + 1] = string.lower(command)
    refused[#refused + 1] = err
  end
end

local exists = try('EXISTS', key)
if exists and exists ~= 0 then return {} end
-- These find no key, and change nothing.
try('HLEN', key)
try('HKEYS', key)
try('HGET', key, 'probe')
try('HDEL', key, 'probe')
try('PTTL', key)
try('PEXPIRE', key, '1000')
try('SET', key, '1', 'XX')
if ARGV[1] ~= '' then
  try('PEXPIREAT', key, '1000')
  try('PERSIST', key)
  try('TYPE', key)
  try('PUBSUB', ARGV[2] == '1' and 'SHARDNUMSUB' or 'NUMSUB', ARGV[1])
  try(ARGV[2] == '1' and 'SPUBLISH' or 'PUBLISH', ARGV[1], '')
end
-- These make a key, and only if it can be deleted.
if try('DEL', key) and exists then
  try('HSET', key, 'probe', '1')
  redis.call('DEL', key)
  try('INCRBY', key, '1')
  redis.call('DEL', key)
end
return refused
