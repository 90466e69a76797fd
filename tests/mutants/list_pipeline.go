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
}
