package main

// What the scripts promise.

const (
	ownership      = "sidecar/store/scripts/ownership.lua"
	acquireRelease = "sidecar/store/scripts/acquire_release.lua"
	renew          = "sidecar/store/scripts/renew.lua"
)

// differential compares the scripts with their model.
var differential = check{"internal/sim/redis", "^TestScriptsBehaveAsTheirModel$/^redis$"}

var scriptMutants = []mutant{
	{
		rule: "a later hold is not this one's",
		file: ownership,
		old:  `  if n and tonumber(n) <= tonumber(num) then`,
		new:  `  if n then`,
		by:   differential,
	},
	{
		rule: "hold numbers are compared as numbers",
		file: ownership,
		old:  `tonumber(n) <= tonumber(num)`,
		new:  `n <= num`,
		by:   differential,
	},
	{
		rule: "another owner's lock is not ours",
		file: ownership,
		old:  `  local n = string.sub(field, 1, #prefix) == prefix and string.match(`,
		new:  `  local n = string.match(`,
		by:   differential,
	},
	{
		rule: "a hash of several fields is not ours",
		file: ownership,
		old:  `  if fields > 1 then`,
		new:  `  if fields > 2 then`,
		by:   differential,
	},
	{
		rule: "an error for another reason than the type is reported as it is",
		file: ownership,
		old:  "    if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then error(fields) end\n",
		new:  "",
		by:   test("sidecar/store", "TestPermissions"),
	},
	{
		rule: "a key of another type is described",
		file: ownership,
		old:  `(redis.pcall('TYPE', lock).ok or 'unknown')`,
		new:  `'unknown'`,
		by:   differential,
	},
	{
		rule: "a take of a key of another type is no refusal by another owner",
		file: acquireRelease,
		old:  `    if no_hash then return {other} end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a drop leaves what is not ours",
		file: acquireRelease,
		old:  `      if not owner(lock, fields, num) then return -3 end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a drop of a lock that has expired publishes",
		file: acquireRelease,
		old:  "    if fields ~= 0 then\n      if not owner(",
		new:  "    if fields == 0 then return -3 end\n    if fields ~= 0 then\n      if not owner(",
		by:   differential,
	},
	{
		rule: "a drop deletes an earlier hold",
		file: acquireRelease,
		old:  `      gone = ask('DEL', lock)` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a renewal leaves what is not ours",
		file: renew,
		old:  `    if not old then return {call('PTTL', lock), other} end`,
		new:  `    if not old then old = field end`,
		by:   differential,
	},
	{
		rule: "a renewal of a lock that has expired says so",
		file: renew,
		old:  `  if fields == 0 then return 0 end` + "\n",
		new:  `  if fields == 0 then return 1 end` + "\n",
		by:   differential,
	},
	{
		rule: "a lock is taken without a look at its key only if none of the run has one",
		file: acquireRelease,
		old:  `unpack(KEYS, 1, takes)`,
		new:  `unpack(KEYS, 1, takes - 1)`,
		by:   differential,
	},
	{
		rule: "a take that moves a hold does not take a free lock",
		file: acquireRelease,
		old:  `    elseif move then`,
		new:  `    elseif false then`,
		by:   differential,
	},
	{
		rule: "a take of a lock that is ours renews its lease",
		file: acquireRelease,
		old: `    local expires = ask('PEXPIRE', lock, lease)
    if type(expires) == 'table' then return expires.err end
`,
		new: ``,
		by:  differential,
	},
	{
		rule: "a take of a lock that is ours needs no memory",
		file: acquireRelease,
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
		file: acquireRelease,
		old:  `    if old ~= field then redis.call('HDEL', lock, old) end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a take that may not set an expiry leaves no lock",
		file: acquireRelease,
		old: `      redis.call('DEL', lock)
      return expires.err`,
		new: `      return expires.err`,
		by:  differential,
	},
	{
		rule: "a take counts the subscribers if it draws more tokens than one",
		file: acquireRelease,
		old:  `  if fields ~= 0 or n ~= '1' then`,
		new:  `  if fields ~= 0 then`,
		by:   differential,
	},
	{
		rule: "a counter that is behind the floor is lifted",
		file: acquireRelease,
		old:  `if last - n < floor then`,
		new:  `if last == n then`,
		by:   differential,
	},
	{
		rule: "a counter is lifted above what the sidecar knows of tokens",
		file: acquireRelease,
		old:  `math.max(now(), birth) + n`,
		new:  `now() + n`,
		by:   differential,
	},
	{
		rule: "a token is below 2^53",
		file: acquireRelease,
		old:  `if last >= 2 ^ 53 then`,
		new:  `if last < 0 then`,
		by:   differential,
	},
	{
		rule: "a new counter has the configured expiry",
		file: acquireRelease,
		old:  `    elseif made then`,
		new:  `    elseif false then`,
		by:   differential,
	},
	{
		rule: "a counter that is lifted keeps its expiry",
		file: acquireRelease,
		old:  `redis.call('SET', counter, text, 'KEEPTTL')`,
		new:  `redis.call('SET', counter, text)`,
		by:   differential,
	},
	{
		rule: "a counter does not expire unless it is configured to",
		file: acquireRelease,
		old:  `      ask('PERSIST', counter)` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "the use of a counter refreshes its expiry",
		file: acquireRelease,
		old:  `elseif left < expiry / 14 * 13 then`,
		new:  `elseif false then`,
		by:   differential,
	},
	{
		rule: "a take that makes a counter says so",
		file: acquireRelease,
		old:  `  if made then last = -last end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a subscriber of a pattern does not count as one that waits",
		file: acquireRelease,
		old:  `  return receivers == 0 and 0 or count_subscribers(channel)`,
		new:  `  return receivers`,
		by:   differential,
	},
	{
		rule: "a retake leaves a hash of several fields to drop and take",
		file: acquireRelease,
		old:  `  if ask('HLEN', lock) ~= 1 then return end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a retake leaves a counter that is behind the floor to take",
		file: acquireRelease,
		old:  `if last - n >= floor and last < 2 ^ 53 and`,
		new:  `if last < 2 ^ 53 and`,
		by:   differential,
	},
	{
		rule: "a retake of another owner's lock deletes its own field again",
		file: acquireRelease,
		old: `      ask('HDEL', lock, prefix .. num)
    else`,
		new: `    else`,
		by:  differential,
	},
	{
		rule: "a retake that does not succeed undoes its draw",
		file: acquireRelease,
		old:  `  if last == n + 0 then ask('DEL', counter) else ask('INCRBY', counter, '-' .. n) end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a retake renews the lease",
		file: acquireRelease,
		old:  `      if ask('PEXPIRE', lock, lease) == 1 then return last end`,
		new:  `      if last then return last end`,
		by:   differential,
	},
	{
		rule: "a retake publishes the release",
		file: acquireRelease,
		old:  `statuses[n + 1], statuses[n + 2] = publish(channel), `,
		new:  `statuses[n + 1], statuses[n + 2] = 0, `,
		by:   differential,
	},

	{
		rule: "a renewal leaves a hash of several fields alone, with its own field too",
		file: renew,
		old:  `and ask('HLEN', lock) == 1 and (not renew`,
		new:  `and (not renew`,
		by:   differential,
	},
	{
		rule: "a check changes nothing",
		file: renew,
		old:  `  if not renew then return have == entries and 1 or 2 end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a renewal sets the entries",
		file: renew,
		old:  `  if have ~= entries then`,
		new:  `  if not have then`,
		by:   differential,
	},
	{
		rule: "a renewal deletes the field of the earlier hold",
		file: renew,
		old:  `    if old ~= field then call('HDEL', lock, old) end` + "\n",
		new:  ``,
		by:   differential,
	},
	{
		rule: "a renewal needs no memory",
		file: renew,
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
}
