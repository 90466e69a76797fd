package main

const rwScript = "sidecar/store/wire/scripts/rw.lua"

// rwDifferential compares the script of read/write locks with its model, and looks at each state for what must be true of it.
var rwDifferential = check{"internal/sim/redis", "^TestReadWriteLocksBehaveAsTheirModel$/^redis$"}

// rwTest is a test of the script beside its model.
func rwTest(name string) check { return test("sidecar/store", name) }

// The rules of read/write locks in Redis.
var rwMutants = []mutant{
	{
		rule: "no other host is given a share while a writer waits (K8)",
		in:   rwScript,
		find: "is_granted = writers == 0 and (mode == 'read' or not mode and readers == 0)",
		put:  "is_granted = mode == 'read' or not mode",
		by:   rwDifferential,
	},
	{
		rule: "a share that no client uses is no share while a writer waits (K8)",
		in:   rwScript,
		find: "and (goal == 'w' or writers == 0)",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "readers do not wait for nothing (K7)",
		in:   rwScript,
		find: "if not next_of('w', policy.max_offers) then admit_readers() elseif",
		put:  "if",
		by:   rwDifferential,
	},
	{
		rule: "readers that came before a phase join it (K9)",
		in:   rwScript,
		find: "elseif begin > 0 then admit_readers(begin) end",
		put:  "end",
		by:   rwTest("TestAPhaseIsJoinedByAllThatWaited"),
	},
	{
		rule: "a reader that came after a phase had begun does not join it (K9)",
		in:   rwScript,
		find: "if not host or came and arrived > came then break end",
		put:  "if not host then break end",
		by:   rwDifferential,
	},
	{
		rule: "after a writer, readers come before the next writer (K9)",
		in:   rwScript,
		find: "if after == 'r' and admit_writer() then return end",
		put:  "if admit_writer() then return end",
		by:   rwDifferential,
	},
	{
		rule: "a host waits before it passes the lock on, and joins the phase (K5)",
		in:   rwScript,
		find: "got, last, made = 'r', token, is_made",
		put:  "last, made = token, is_made",
		by:   rwDifferential,
	},
	{
		rule: "an operation changes nothing that has a higher number (K3)",
		in:   rwScript,
		find: "if own and own + 0 > number + 0 then return {code.later} end",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "hosts that share a lock are a reader to Redisson",
		in:   rwScript,
		find: "local lives = ask('SET', life, format('%.0f', till), 'PX', format('%.0f', till - now_ms()))",
		put:  "local lives = {}",
		by:   rwDifferential,
	},
	{
		rule: "no host writes into a share whose key was deleted",
		in:   rwScript,
		find: "and writers + readers == 0 and ask('EXISTS', life) == 0",
		put:  "and writers + readers == 0",
		by:   rwDifferential,
	},
	{
		rule: "no writer is admitted to a share whose key was deleted",
		in:   rwScript,
		find: "if ask('EXISTS', life) ~= 0 then return false end -- hosts share it, and the HASH was deleted",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "a new share does not end those of a HASH that was deleted",
		in:   rwScript,
		find: "if ended > now_ms() then",
		put:  "if false then",
		by:   rwDifferential,
	},
	{
		rule: "a renewal makes the sign of life again",
		in:   rwScript,
		find: "if till ~= was or not is_new then",
		put:  "if till ~= was then",
		by:   rwDifferential,
	},
	{
		rule: "a share with a short lease does not shorten what others have (K2)",
		in:   rwScript,
		find: "if till < expiry then till = now_ms()",
		put:  "if true then till = now_ms()",
		by:   rwDifferential,
	},
	{
		rule: "the claim of no host lasts as long as what was deleted",
		in:   rwScript,
		find: "claims, due, till = claims + 1, ended, ended",
		put:  "claims, due = claims + 1, ended",
		by:   rwDifferential,
	},
	{
		rule: "a dead writer keeps no reader waiting (K7)",
		in:   rwScript,
		find: "if queued then next_of('w', policy.max_offers) end -- one that is silent keeps no host waiting",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "a host learns that it has lost what it was to keep",
		in:   rwScript,
		find: "if is_lost then return {code.missing} end",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "a place that stands needs no memory",
		in:   rwScript,
		find: "if rank_of(m) then write('PEXPIRE', asks, 'policy.queue_expiry_ms') end",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "a host learns that more readers may join",
		in:   rwScript,
		find: "(first[2] + 0 <= begin or waiting('w') == 0)",
		put:  "first[2] + 0 <= begin and wait > 0",
		by:   rwTest("TestAPhaseIsJoinedByAllThatWaited"),
	},
	{
		rule: "a lock that no writer received expires when another host gets it",
		in:   rwScript,
		find: `redis.call('DEL', lock) -- no connection has received that
    mode, ends = nil, nil`,
		put: `redis.call('DEL', lock) -- no connection has received that
    mode = nil`,
		by: rwDifferential,
	},
	{
		rule: "what no connection received is no share",
		in:   rwScript,
		find: "claims = claims - 1\n    end\n  end\n  if not token",
		put:  "end\n  end\n  if not token",
		by:   rwDifferential,
	},
	{
		rule: "a reader of Redisson does not shorten the shares of hosts",
		in:   rwScript,
		find: "ends = left < 0 and 0 or now_ms() + left + 2 -- ms are rounded",
		put:  "ends = till",
		by:   rwDifferential,
	},
	{
		rule: "what was changed by hand is counted again",
		in:   rwScript,
		find: "prune() -- it was changed by hand",
		put:  "",
		by:   rwTest("TestReadWriteLocksSurviveWhatIsWrittenByHand"),
	},
	{
		rule: "a share that has expired keeps no writer waiting",
		in:   rwScript,
		find: "if due and now_ms() >= due and (goal == 'w' or waiting('w') > 0) then prune() end",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "a share that has not expired stays",
		in:   rwScript,
		find: "expiry + 0 <= now_ms() and all[i] ~= uuid",
		put:  "all[i] ~= uuid",
		by:   rwDifferential,
	},
	{
		rule: "a share becomes exclusive only if it is the only one",
		in:   rwScript,
		find: "keep == 'n' and claims == 1 and writers + readers == 0 and redis.call('HLEN', lock) == 4",
		put:  "keep == 'n' and writers + readers == 0",
		by:   rwDifferential,
	},
	{
		rule: "a program that reads keeps the lock when the last host leaves",
		in:   rwScript,
		find: "if redis.call('HLEN', lock) > 1 then return false end",
		put:  "",
		by:   rwDifferential,
	},
	{
		rule: "programs are notified when a lock is free, or shared from now on",
		in:   rwScript,
		find: "if gone and mode ~= 'write' then",
		put:  "if gone and not mode then",
		by:   rwDifferential,
	},
	{
		rule: "a key that cannot expire does not stay",
		in:   rwScript,
		find: "if claims <= 1 and (ends or 0) == 0 then redis.call('DEL', lock, life) end",
		put:  "",
		by:   rwTest("TestReadWriteLocksWithoutAPermission"),
	},
	{
		rule: "the head counts a share",
		in:   rwScript,
		find: "claims + 1 .. ' ' .. due",
		put:  "claims .. ' ' .. due",
		by:   rwDifferential,
	},
	{
		rule: "the head leaves a lock alone for which others wait",
		in:   rwScript,
		find: "and ask('EXISTS', keys[4], keys[5]) == 0 then\n      if m == 'w'",
		put:  "then\n      if m == 'w'",
		by:   rwDifferential,
	},
	{
		rule: "the head ends no phase of Redisson's readers",
		in:   rwScript,
		find: "status = ask('HLEN', lock) == 4 and",
		put:  "status =",
		by:   rwDifferential,
	},
}
