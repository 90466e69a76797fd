-- main: take locks and drop locks, each independently of the others. All that a sidecar sends at
-- one time is one run: to begin another one costs Redis as much as to take and drop a lock.
-- KEYS     the locks: those that are taken, with one entry and one token; set in another way;
--          dropped; dropped and taken again, with one entry. Then, for each that is not only dropped,
--          its token counter, STRING. If all keys are declared, in a Cluster: then the queues, the
--          signs (see queue.lua), and the counters of those that are only dropped; all are of one slot
-- ARGV[1]  owner field of the first lock
-- ARGV[2]  terms. Bytes: how many are taken; are set; are dropped; flags: 1: a lock may have a brace; 2: one
--          that is taken again may be left free without a queue; 4: replicas confirm what is done, so
--          something is written; 1: all keys are declared; 1: the channels of locks are sharded; seven, the
--          lowest first: the floor: tokens of this connection are above it, µs. Then, each followed by a space:
--            expiry of a counter after its last use, ms; 0: counters do not expire
--            birth: the first token of a new counter is above it, and above Redis's clock; µs
--            lease of what is passed on by a drop, ms; 0: nothing is passed on
--            origin: the server that executes this script, as the connection knows it
--            of the queue: for each operation wait.…, a ticket (0: none) and a time; missing ones are 0. The
--            time of a take with wait.arrived: when its request arrived, µs; of a drop: for how long the
--            lock has passed from owner to owner, ms
-- ARGV[3]  lease of what is taken, ms; it is missing if locks are only dropped
-- ARGV[…]  for each lock: hold number, below 2^53, but of the first; if it is set: entries, tokens, flags (see
--          take); if dropped and taken again: number of the new hold, tokens, flags
-- Returns for each operation, in this order, the status: see take and drop; if it is one, the status alone.

-- Commands that may fail (wrong type, memory, a read-only replica, permissions) run before
-- the lock is written. Commands that may fail for lack of memory also run before the
-- drops: once a script has written anything, Redis no longer enforces maxmemory for it. A
-- lock that is taken again or passed on needs no more memory than it had. Messages are
-- published after what they report was written.

local flags = given % 4
local locks = declared == 1 and #keys / 4 or (#keys + drops) / 2

local statuses = {}
local counters, n, a = locks, 0, drops < locks and 3 or 2
args[a] = first
local function note(ok, status)
  if not ok then status = {code.refused, type(status) == 'table' and status.err or status} end
  n = n + 1
  statuses[n] = status
end

-- One command finds out for all locks whether those that are taken are free, and no lock has a queue.
local names = {unpack(keys, 1, takes + locks)} -- which makes room
for i = 1, locks do names[takes + i] = 'locksidecar_queue:{' .. keys[i] .. '}' end
for i = 1, flags % 2 == 1 and locks or 0 do
  if string.find(keys[i], '{', 1, true) then names[takes + i] = 'locksidecar_queue::' .. keys[i] end
end
found = found or ask('EXISTS', unpack(names))
local free = found == 0
if not free then
  -- This user may not be permitted to use all queues.
  wanted = takes == 0 or ask('EXISTS', unpack(names, takes + 1)) ~= 0
  if type(found) == 'table' and takes > 1 then free = ask('EXISTS', unpack(keys, 1, takes)) == 0 end
end
wanted = wanted or flags >= 2
if wanted then queues = define_queues() end

local again = takes + sets + drops + 1
for i = 1, again - 1 do
  local lock, num = keys[i], args[a]
  if i > takes + sets then
    local channel = 'redisson_lock__channel:{' .. lock .. '}'
    if flags % 2 == 1 and string.find(lock, '{', 1, true) then channel = 'redisson_lock__channel:' .. lock end
    if wanted then note(pcall(queues.drop, i, lock, num, channel)) else note(pcall(release, lock, num, channel)) end
    a = a + 1
  else
    counters = counters + 1
    if i <= takes then
      note(pcall(take, i, lock, keys[counters], num, '1', '1', '', free))
      a = a + 1
    else
      note(pcall(take, i, lock, keys[counters], num, args[a + 1], args[a + 2], args[a + 3], false))
      a = a + 4
    end
  end
end
for i = again, locks do
  counters = counters + 1
  local lock, num, later, counter = keys[i], args[a], args[a + 1], keys[counters]
  local channel = 'redisson_lock__channel:' .. string.sub(counter, #'redisson_lock_token:' + 1)
  local ok, status, passed_on, stays_free
  if wanted then
    ok, status, passed_on, stays_free = pcall(queues.drop, n + 1, lock, num, channel, later)
  else
    ok, status = pcall(release, lock, num, channel)
  end
  note(ok, status)
  if ok and stays_free then
    note(pcall(queues.refuse, n + 1, lock, channel, later))
  else
    note(pcall(take, n + 1, lock, counter, later, '1', args[a + 2], args[a + 3], false, ok and passed_on))
  end
  a = a + 4
end
return n == 1 and statuses[1] or statuses
