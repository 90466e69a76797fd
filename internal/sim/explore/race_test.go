//go:build race

package explore

// The race detector makes an exploration ten times as slow, and finds races with a small one as
// well.
func init() { budgets = budgets[:2] }
