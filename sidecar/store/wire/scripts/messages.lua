-- messages: what scripts write and send for other sidecars.
--
-- Messages on redisson_lock__channel:{locksidecar}:<uuid>:
--   transfer:<origin> <ticket> <last token> <tokens> <lease, ms> <waiting> <passed, ms> <lock>
--   admit:<origin> p <number> <units> <last token> <tokens> <lease, ms> <waiting> <lock>
--   recall:<origin> <lock>
--   admit:<origin> r <number> <mode: 1: shared, 2: exclusive> <last token> <tokens> <lease, ms> <waiting> <lock>
--   return:<origin> <p or r> <lock>
--   free:<origin> <pause, ms> <lock>
--   requeue:<origin> <ticket> <lock>
-- A sidecar whose uuid is not of version 8 may know no origins: its messages have none, and its
-- requeue has no ticket.

local pass_lease, origin, waits = string.match(terms, '^%d+ %d+ (%d+) (%S*) (.*)$', 14)

local clock
-- Redis's clock, µs.
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000000 + time[2]
  end
  return clock
end

-- Executes a command that writes, and may fail for any reason but that this server is a replica.
-- A replica executes what only reads, and what it read may be out of date: so the first command
-- that is refused with READONLY ends the operation with this error.
local function write(...)
  local reply = ask(...)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'READONLY', 1, true) then error(reply) end
  return reply
end

-- Sends a message, of a word and the rest, to the sidecar of an owner field. Returns how many
-- connections received it.
local function send(field, word, rest)
  if not string.find(field, '^:%d+$', 37) then return 0 end
  if string.sub(field, 15, 15) == '8' then word = word .. ':' .. origin end
  local reached = ask('PUBLISH', 'redisson_lock__channel:{locksidecar}:' .. string.sub(field, 1, 36), word .. ' ' .. rest)
  return type(reached) == 'number' and reached or 0
end

