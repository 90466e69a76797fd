package claim

import "testing"

// What happens to a claim while nothing is in flight is not noted in the window that it shares with
// others.
func TestEventsAtRestDoNotWriteTheSharedWindow(t *testing.T) {
	for name, happens := range map[string]func(c *Claim){
		"a release was published":     func(c *Claim) { c.Note(LockMayBeFree) },
		"the key may have changed":    func(c *Claim) { c.CheckSoon(1) },
		"Redis may have lost data":    func(c *Claim) { c.OnDataLost() },
		"another shard has the lock":  func(c *Claim) { c.OnMoved() },
		"a failure is not waited for": func(c *Claim) { c.EndPause() },
	} {
		var c Claim
		c.Reset()
		happens(&c)
		if !IsAtRest(&c) {
			t.Errorf("%s: the claim has a window of its own", name)
		}
		if atRest != (window{}) {
			t.Fatalf("%s: the window that claims share was written: %+v", name, atRest)
		}
	}
}
