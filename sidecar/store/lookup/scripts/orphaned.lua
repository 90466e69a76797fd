-- orphaned: let one Drop run in the name of another sidecar, which is gone for
-- good. This text stands before that of the script for Takes and Drops. It returns early if the
-- lock is not what was examined, or if there is a sign of life. Otherwise that script executes
-- the Drop, so that a waiter gets the lock as it does after any other Drop.
--
-- ARGV[1]  the owner field that was examined
-- ARGV[3]  key of what that sidecar published of its host; empty: there is none
-- ARGV[4]  channel of that sidecar
-- ARGV[5]  recall of the lock: a message that a sidecar may receive at any time
--
-- Returns early
-- "changed"    the key does not have exactly this field
-- "published"  that sidecar was connected a few minutes ago
-- "alive"      a connection received the recall
-- or the error of Redis. In each case nothing was changed.

do
  local fields = redis.pcall('HLEN', KEYS[1])
  if type(fields) == 'table' and string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then return fields end
  if fields ~= 1 or redis.call('HKEYS', KEYS[1])[1] ~= ARGV[1] then return redis.status_reply('changed') end
  local published = ARGV[3] == '' and 0 or redis.pcall('EXISTS', ARGV[3])
  if type(published) == 'table' then return published end
  if published ~= 0 then return redis.status_reply('published') end
  -- Not PUBSUB NUMSUB, which may be not permitted: then a sidecar that lives would not be found.
  local reached = redis.pcall('PUBLISH', ARGV[4], ARGV[5])
  if type(reached) == 'table' then return reached end
  if reached ~= 0 then return redis.status_reply('alive') end
end

