package main

// What the scripts promise.

const (
	trade = "sidecar/store/scripts/trade.lua"
	keep  = "sidecar/store/scripts/keep.lua"
)

// differential compares the scripts with their model.
var differential = check{"sidecar/store", "^TestScriptsBehaveAsTheirModel$/^redis$"}

var scriptMutants = []mutant{
	{
		rule: "a lock is taken without a look at its key only if none of the run has one",
		file: trade,
		old:  `unpack(KEYS, 1, takes)`,
		new:  `unpack(KEYS, 1, takes - 1)`,
		by:   differential,
	},
	{
		rule: "a take leaves a later hold alone",
		file: trade,
		old: `if not n or tonumber(n) > tonumber(num) then
      return {redis.call('PTTL', lock), string.sub(old`,
		new: `if not n then
      return {redis.call('PTTL', lock), string.sub(old`,
		by: differential,
	},
	{
		rule: "a take compares hold numbers as numbers",
		file: trade,
		old: `if not n or tonumber(n) > tonumber(num) then
      return {redis.call('PTTL', lock), string.sub(old`,
		new: `if not n or n > num then
      return {redis.call('PTTL', lock), string.sub(old`,
		by: differential,
	},
	{
		rule: "a take leaves another owner's lock alone",
		file: trade,
		old: `    local n = string.sub(old, 1, #prefix) == prefix and string.match(old, '^%d+$', #prefix + 1)
    if not n or tonumber(n) > tonumber(num) then
      return {redis`,
		new: `    local n = string.match(old, '^%d+$', #prefix + 1)
    if not n or tonumber(n) > tonumber(num) then
      return {redis`,
		by: differential,
	},
	{
		rule: "a take leaves a hash of several fields alone",
		file: trade,
		old: `    if fields > 1 then
      local what = 'a hash with '`,
		new: `    if fields > 2 then
      local what = 'a hash with '`,
		by: differential,
	},
	{
		rule: "a take does not take a key of another type for a free lock",
		file: trade,
		old:  `if type(fields) == 'table' then return failed(lock, fields.err) end`,
		new:  `if type(fields) == 'table' then fields = 0 end`,
		by:   differential,
	},
	{
		rule: "a take that moves a hold does not take a free lock",
		file: trade,
		old:  `    if fields == 0 and move then return -1 end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a take of a lock that is ours renews its lease",
		file: trade,
		old: `    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then return expires.err end
`,
		new: ``,
		by:  differential,
	},
	{
		rule: "a take of a lock that is ours needs no memory",
		file: trade,
		old: `    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then return expires.err end
  end
`,
		new: `    local later = old
    old = nil
    if redis.call('HGET', lock, prefix .. num) then old = later end
  end
`,
		by: differential,
	},
	{
		rule: "a take deletes the field of the earlier hold",
		file: trade,
		old:  `    if old ~= field then redis.call('HDEL', lock, old) end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a take that may not set an expiry leaves no lock",
		file: trade,
		old: `      redis.call('DEL', lock)
      return expires.err`,
		new: `      return expires.err`,
		by:  differential,
	},
	{
		rule: "a take counts the subscribers if it draws more tokens than one",
		file: trade,
		old:  `if fields ~= 0 or draw ~= '1' then`,
		new:  `if fields ~= 0 then`,
		by:   differential,
	},
	{
		rule: "a counter that is behind the floor is lifted",
		file: trade,
		old:  `if last - n < floor then`,
		new:  `if last == n then`,
		by:   differential,
	},
	{
		rule: "a counter is lifted above what the sidecar knows of tokens",
		file: trade,
		old:  `math.max(time[1] * 1000000 + time[2], birth) + n`,
		new:  `time[1] * 1000000 + time[2] + n`,
		by:   differential,
	},
	{
		rule: "a token is below 2^53",
		file: trade,
		old:  `if last >= 2 ^ 53 then`,
		new:  `if last < 0 then`,
		by:   differential,
	},
	{
		rule: "a new counter has the configured expiry",
		file: trade,
		old:  `      elseif made then`,
		new:  `      elseif false then`,
		by:   differential,
	},
	{
		rule: "a counter that is lifted keeps its expiry",
		file: trade,
		old:  `redis.call('SET', counter, text, 'KEEPTTL')`,
		new:  `redis.call('SET', counter, text)`,
		by:   differential,
	},
	{
		rule: "a counter does not expire unless it is configured to",
		file: trade,
		old:  `          ask('PERSIST', counter)` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "the use of a counter refreshes its expiry",
		file: trade,
		old:  `elseif left < expiry / 14 * 13 then`,
		new:  `elseif false then`,
		by:   differential,
	},
	{
		rule: "a take that makes a counter says so",
		file: trade,
		old:  `  if made then last = -last end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a drop deletes an earlier hold",
		file: trade,
		old:  `    if fields == 1 then`,
		new:  `    if false then`,
		by:   differential,
	},
	{
		rule: "a drop leaves a later hold alone",
		file: trade,
		old:  `if not n or tonumber(n) > tonumber(num) then return -3 end`,
		new:  `if not n then return -3 end`,
		by:   differential,
	},
	{
		rule: "a drop of a lock that has expired publishes",
		file: trade,
		old:  `    if fields > 1 then return -3 end`,
		new:  `    if fields ~= 1 then return -3 end`,
		by:   differential,
	},
	{
		rule: "a subscriber of a pattern does not count as one that waits",
		file: trade,
		old: `  heard = ask('PUBSUB', 'NUMSUB', channel)
  return heard.err and -1 or heard[2]
end

local function drop`,
		new: `  return heard
end

local function drop`,
		by: differential,
	},
	{
		rule: "a retake leaves a hash of several fields to drop and take",
		file: trade,
		old:  `  if ask('HLEN', lock) ~= 1 then return end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a retake leaves a counter that is behind the floor to take",
		file: trade,
		old:  `if last - 1 >= floor and last < 2 ^ 53 and`,
		new:  `if last < 2 ^ 53 and`,
		by:   differential,
	},
	{
		rule: "a retake of another owner's lock deletes its own field again",
		file: trade,
		old: `      ask('HDEL', lock, prefix .. num)
    else`,
		new: `    else`,
		by:  differential,
	},
	{
		rule: "a retake that does not succeed undoes its draw",
		file: trade,
		old:  `  if last == 1 then ask('DEL', counter) else ask('INCRBY', counter, '-1') end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a retake renews the lease",
		file: trade,
		old:  `      if ask('PEXPIRE', lock, lease) == 1 then return last end`,
		new:  `      if last then return last end`,
		by:   differential,
	},
	{
		rule: "a retake publishes the release",
		file: trade,
		old: `    local heard = ask('PUBLISH', channel, unlocked)
    if heard ~= 0 then heard = told(channel, heard) end
    statuses`,
		new: `    local heard = 0
    statuses`,
		by: differential,
	},

	{
		rule: "a renewal leaves a hash of several fields alone, with its own field too",
		file: keep,
		old:  `and ask('HLEN', lock) == 1 and (not renew`,
		new:  `and (not renew`,
		by:   differential,
	},
	{
		rule: "a renewal leaves a later hold alone",
		file: keep,
		old:  `if not n or tonumber(n) > tonumber(num) then`,
		new:  `if not n then`,
		by:   differential,
	},
	{
		rule: "a check changes nothing",
		file: keep,
		old:  `  if not renew then return have == entries and 1 or 2 end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a renewal sets the entries",
		file: keep,
		old:  `  if have ~= entries then`,
		new:  `  if not have then`,
		by:   differential,
	},
	{
		rule: "a renewal deletes the field of the earlier hold",
		file: keep,
		old:  `    if old ~= field then call('HDEL', lock, old) end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a renewal needs no memory",
		file: keep,
		old: `  call('PEXPIRE', lock, lease)
  if have ~= entries then
    call('HSET', lock, field, entries)
    if old ~= field then call('HDEL', lock, old) end
  end
`,
		new: `  if have ~= entries then
    call('HSET', lock, field, entries)
    if old ~= field then call('HDEL', lock, old) end
  end
  call('PEXPIRE', lock, lease)
`,
		by: differential,
	},
	{
		rule: "a renewal of a key of another type says what is there",
		file: keep,
		old:  `if what then return {call('PTTL', lock), what} end`,
		new:  `if what then return 0 end`,
		by:   differential,
	},
}
