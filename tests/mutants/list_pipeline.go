package main

// What the lock table relies on, in all orders: the contract of the store.

var allOrders = test("internal/sim/explore/pipeline", "TestExplorePipeline")

var pipelineMutants = []mutant{
	{
		rule: "S1: an operation that waits when there is no connection has a result",
		in:   "sidecar/store/pipeline (*Waiting).All",
		find: "return w.others.pop(dst, w.others.len())",
		put:  "w.others.pop(nil, w.others.len())\n\treturn dst",
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
		rule: "S6: the lease of a lock begins before what acquires it is written",
		in:   "sidecar/store/pipeline (*Machine).onRun",
		find: "redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Sent: cl.sent, Conn: m.id}",
		put:  "redisop.Result{Kind: op.Kind, Name: op.Name, Shard: op.Shard, Sent: now, Conn: m.id}",
		by:   allOrders,
	},
	{
		rule: "S7: what is unknown needs a connection that has ended",
		in:   "sidecar/store/pipeline notSynced",
		find: "redisop.NotSynced",
		put:  "redisop.Unknown",
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
		rule: "S9: a Take that follows its Drop in one run is executed after it",
		in:   "sidecar/store/wire retakes",
		find: "take.Count == 1",
		put:  "take.Count == 2",
		by:   allOrders,
	},
	{
		rule: "S10: a new token counter begins above the tokens that the connection has seen",
		in:   "sidecar/store/pipeline (*Machine).runScript",
		find: "m.ID.Above(now)",
		put:  "0",
		by:   allOrders,
	},
	{
		rule: "S11: a transfer from another server has no connection",
		in:   "sidecar/store/pipeline (*Machine).onMessage",
		find: "from.IsSame(m.Origin) && !m.isWithholding()",
		put:  "!m.isWithholding()",
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
		rule: "S13: all channels that are wanted are requested of a new connection",
		in:   "sidecar/store/pipeline (*channels).onDisconnect",
		find: "clear(c.asked)",
		put:  "",
		by:   allOrders,
	},
	{
		rule: "S13: a channel that is not permitted is searched by halves, and the others are subscribed",
		in:   "sidecar/store/pipeline (*channels).onRefusal",
		find: "len(channels) > 1",
		put:  "len(channels) > 9",
		by:   allOrders,
	},
}
