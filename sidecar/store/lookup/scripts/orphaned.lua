-- orphaned: let one Drop run in the name of another sidecar, which is gone for
-- good. This text stands before that of the script for Takes and Drops, or for permits. It returns early if the
-- lock is not what was examined, or if there is a sign of life. Otherwise that script executes
-- the Drop, so that a waiter gets the lock as it does after any other Drop.
--
-- ARGV[1]   the owner field that was examined; of a semaphore the uuid of that sidecar, and a colon
-- Of the last three:
-- the first   key of what that sidecar published of its host; empty: there is none
-- the second  channel of that sidecar
-- the third   recall of the lock: a message that a sidecar may receive at any time
--
-- Returns early
-- "changed"    the key does not have exactly this field; or that sidecar has no permits
-- "published"  that sidecar was connected a few minutes ago
-- "alive"      a connection received the recall
-- or the error of Redis. In each case nothing was changed.

local claim -- of a semaphore: the number of the claim, its permits, and for how long it lasts, ms
do
  local lock, uuid, last = KEYS[1], string.match(ARGV[1], '^(.+):$'), #ARGV
  local fields = redis.pcall('HLEN', lock)
  if type(fields) == 'table' and string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  local is_examined
  if type(fields) == 'table' then
    is_examined = false
  elseif uuid then
    local mode, text, time = redis.call('HGET', lock, 'mode'), redis.call('HGET', lock, uuid), redis.call('TIME')
    local number, permits, expiry = string.match(text or '', '^(%d+) (%d+) (%d+)$')
    local left = (expiry or 0) - time[1] * 1000 - math.floor(time[2] / 1000)
    is_examined = left > 0 and string.sub(mode or '', 1, 8) == 'permits '
    claim = {number, permits, left}
  else
    is_examined = fields == 1 and redis.call('HKEYS', lock)[1] == ARGV[1]
  end
  if not is_examined then return redis.status_reply('changed') end
  local published = ARGV[last - 2] == '' and 0 or redis.pcall('EXISTS', ARGV[last - 2])
  if type(published) == 'table' then return published end
  if published ~= 0 then return redis.status_reply('published') end
  -- Not PUBSUB NUMSUB, which may be not permitted: then a sidecar that lives would not be found.
  local reached = redis.pcall('PUBLISH', ARGV[last - 1], ARGV[last])
  if type(reached) == 'table' then return reached end
  if reached ~= 0 then return redis.status_reply('alive') end
end
