package main

// What the lock table relies on, in all orders: the contract of the store.

var allOrders = test("internal/sim/explore/pipeline", "TestExplorePipeline")

var pipelineMutants = []mutant{
	{
		rule: "S1: an operation that waits when there is no connection has a result",
		in:   "sidecar/store/pipeline (*Machine).Refuse",
		find: "ops = m.others.pop(ops, m.others.len())",
		put:  "m.others.pop(nil, m.others.len())",
		by:   allOrders,
	},
	{
		rule: "S2: what may have been sent is not called not sent",
		in:   "sidecar/store/pipeline (*Machine).Down",
		find: "cl.from >= sent",
		put:  "cl.from >= 0",
		by:   allOrders,
	},
	{
		rule: "S3: what a server refused is not done",
		in:   "sidecar/store/pipeline (*Machine).decode",
		find: "m.refuse(&results[i], answer.Text, len(results))",
		put:  "results[i].Outcome = redisop.Done",
		by:   allOrders,
	},
	{
		rule: "S4: what was executed is not called refused",
		in:   "sidecar/store/pipeline (*Machine).decode",
		find: "results[i].Outcome = redisop.Done",
		put:  "results[i].Outcome = redisop.Retryable",
		by:   allOrders,
	},
	{
		rule: "S5: results that replicas confirm do not come after a message that followed them",
		in:   "sidecar/store/pipeline (*Machine).gather",
		find: "m.setAside()",
		put:  "m.deliveries = append(m.deliveries, Delivery{Kind: Messages, Messages: m.messages})\n\t\t\tm.messages = nil",
		by:   allOrders,
	},
	{
		rule: "S8: a route is delivered before what was not executed, in all orders",
		in:   "sidecar/store/pipeline (*Machine).noteRedirect",
		find: "m.redirects = append(m.redirects, r)",
		put:  "_ = r",
		by:   allOrders,
	},
	{
		rule: "S12: what no replica has confirmed is not done",
		in:   "sidecar/store/pipeline (*Machine).onWait",
		find: "case answer.Num < int64(m.cfg.Replicas):",
		put:  "case false:",
		by:   allOrders,
	},
	{
		rule: "S12: results are withheld until the WAIT of their batch is answered",
		in:   "sidecar/store/pipeline (*durability).withhold",
		find: "d.withholds = d.withholds || isOwed",
		put:  "",
		by:   allOrders,
	},
	{
		// A replica that was behind has an older counter. What keeps tokens rising then is the floor: the time at which
		// the connection to it was made.
		rule: "tokens rise after a failover to a replica that was behind",
		in:   "sidecar/store/pipeline (*Machine).Up",
		find: "Floor: g.ID.Floor",
		put:  "Floor: 1",
		by:   simulation,
	},
	{
		rule: "a transfer is accepted only from the server that executed it",
		in:   "sidecar/store/pipeline (*Machine).onMessage",
		find: "from.IsSame(m.Origin) && !m.isWithholding()",
		put:  "!m.isWithholding()",
		by:   simulation,
	},
	{
		rule: "a transfer is not accepted from a shard that passes the message on",
		in:   "sidecar/store/pipeline (*Machine).onMessage",
		find: "if m.cfg.IsNode && from.IsKnown && m.Origin.IsKnown && !from.IsSame(m.Origin) {\n\t\treturn\n\t}",
		put:  "if m.cfg.IsNode && from.IsKnown && m.Origin.IsKnown && !from.IsSame(m.Origin) {\n\t\tmsg.Conn = m.id\n\t}",
		by:   simulation,
	},
	{
		rule: "a host knows of tokens that it has seen at another shard",
		in:   "sidecar/store/pipeline (*Machine).Lift",
		find: "!m.isUp",
		put:  "true",
		by:   simulation,
	},
	{
		rule: "a script declares each key that it may make",
		in:   "sidecar/store/pipeline (*Machine).Up",
		find: "m.cfg.IsNode && g.HasQueues",
		put:  "false",
		by:   simulation,
	},
	{
		rule: "a renewal that no replica confirmed extends no deadline",
		in:   "sidecar/store/pipeline notSynced",
		find: "r.Kind == redisop.Take || r.Kind == redisop.Renew || r.Kind == redisop.Drop",
		put:  "r.Kind == redisop.Take || r.Kind == redisop.Drop",
		by:   simulation,
	},
	{
		rule: "a lock that no replica confirmed is not granted",
		in:   "sidecar/store/pipeline notSynced",
		find: "r.Kind == redisop.Take || r.Kind == redisop.Renew || r.Kind == redisop.Drop",
		put:  "r.Kind == redisop.Renew || r.Kind == redisop.Drop",
		by:   simulation,
	},
	{
		rule: "a confirm waits for a release that a replica confirmed",
		in:   "sidecar/store/pipeline notSynced",
		find: "r.Kind == redisop.Take || r.Kind == redisop.Renew || r.Kind == redisop.Drop",
		put:  "r.Kind == redisop.Take || r.Kind == redisop.Renew",
		by:   simulation,
	},
	{
		rule: "a lock that another host passed on is granted when a replica has confirmed it",
		in:   "sidecar/store/pipeline (*Machine).onMessage",
		find: "!m.isWithholding()",
		put:  "true",
		by:   simulation,
	},
	{
		rule: "a result that is withheld when the connection ends is unknown",
		in:   "sidecar/store/pipeline (*Machine).withheldUnknown",
		find: "redisop.Result{Kind: r.Kind, Name: r.Name, Shard: r.Shard, Sent: r.Sent, Outcome: redisop.Unknown, Msg: why}",
		put:  "r",
		by:   simulation,
	},
	{
		rule: "a release that an earlier connection executed is confirmed when a replica has it",
		in:   "sidecar/store/wire (*Encoder).AppendRun",
		find: "flags += 4",
		put:  "flags += 0",
		by:   simulation,
	},
}
