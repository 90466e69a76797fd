-- ownership: whose lock a key is. The text of each script has this one before what uses it.
--
-- A lock that is held is a HASH with one field, "<uuid>:<hold number>", whose value is the
-- number of entries. Other clients of the lock have fields of the same form: "<id>:<number>", or
-- "<id>:<number>:<more>".

local prefix = ARGV[1] -- of this sidecar's owner fields: "<uuid>:"

-- Decides whether a key belongs to this sidecar, and to hold num or an earlier one. fields
-- is what a command for hashes returned for the key: the number of fields, at least 1, or
-- an error.
--
-- Returns the owner field if the key does. Otherwise it returns nil, and the owner field or
-- a description of what is there, nil if the key is gone; and true if that is not a lock. An error
-- for another reason than the key's type is raised.
--
-- It is one function, because Redis pays for each that a script defines.
local function owner(lock, fields, num)
  if type(fields) == 'table' then
    if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then error(fields) end
    return nil, 'a key of type ' .. (redis.pcall('TYPE', lock).ok or 'unknown') .. ', which is not a lock', true
  end
  if fields == 1 then
    local keys = redis.pcall('HKEYS', lock)
    if keys.err then error(keys) end
    local field = keys[1] or ''
    local n = string.sub(field, 1, #prefix) == prefix and string.match(field, '^%d+$', #prefix + 1)
    if n and tonumber(n) <= tonumber(num) then return field end
    if string.find(field .. ':', ':%-?%d+:') then return nil, string.sub(field, 1, 256) end
  end
  -- A plain lock has one field. Anything else is another structure under the same name.
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then error(mode) end
  if mode == 'read' or mode == 'write' then return nil, 'a read-write lock in mode ' .. mode end
  if string.find(mode or '', '^permits') then return nil, 'a semaphore' end -- see permits.lua
  -- Where time goes on during a script, as in the embedded Redis, the key may have expired since.
  if redis.pcall('EXISTS', lock) == 0 then return end
  return nil, 'a hash with ' .. fields .. ' field' .. (fields == 1 and '' or 's') .. ', which is not a lock', true
end

