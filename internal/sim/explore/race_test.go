//go:build race

package explore

// The race detector makes an exploration ten times as slow, and finds races with a small one as
// well.
func init() {
	budgets = budgets[:2]
	allFairBudgets, someFairBudgets = []Budget{{Clients: 2}}, []Budget{{Clients: 1}}
	clusterBudgets, clusterCalmBudgets, clusterFairBudgets = nil, clusterBudgets, nil
}
