package flashsale

import (
	"strings"
	"testing"
)

// salesOf sells units in this order, with tokens that rise by one.
func salesOf(units ...int) []tillReport {
	sales := make([]tillReport, len(units))
	for i, unit := range units {
		sales[i] = tillReport{Kind: "sale", Unit: unit, Token: uint64(100 + i)}
	}
	return sales
}

// The demo's verdict is the reason to believe it: each kind of wrong sale must
// be found.
func TestVerdictFindsWhatIsWrong(t *testing.T) {
	if err := soldExactly(3, salesOf(3, 2, 1)); err != nil {
		t.Errorf("a good sale: %v", err)
	}
	for what, sales := range map[string][]tillReport{
		"a unit sold twice":      salesOf(3, 2, 2, 1),
		"a unit not sold":        salesOf(3, 1),
		"one twice, one not":     salesOf(3, 3, 1),
		"a unit that is not":     salesOf(4, 3, 2, 1),
		"nothing sold":           nil,
		"a unit below the stock": salesOf(3, 2, 1, 0),
	} {
		if soldExactly(3, sales) == nil {
			t.Errorf("not found: %s", what)
		}
	}

	// Reports arrive in any order; the units tell the true one.
	shuffled := salesOf(3, 2, 1)
	shuffled[0], shuffled[2] = shuffled[2], shuffled[0]
	if err := tokensRise(shuffled); err != nil {
		t.Errorf("good tokens: %v", err)
	}
	same := salesOf(3, 2, 1)
	same[2].Token = same[1].Token
	if tokensRise(same) == nil {
		t.Error("not found: a token used twice")
	}
	swapped := salesOf(3, 2, 1)
	swapped[1].Token, swapped[2].Token = swapped[2].Token, swapped[1].Token
	if tokensRise(swapped) == nil {
		t.Error("not found: a token smaller than that of the sale before")
	}
}

// The sale after the kill is the first that was granted later, with a larger
// token than the killed till had.
func TestNextSaleAfterTheKill(t *testing.T) {
	p := part{killed: 1000, token: 101, sales: []tillReport{
		{Unit: 3, Token: 100, GrantedNS: 900},
		{Unit: 1, Token: 103, GrantedNS: 1300},
		{Unit: 2, Token: 102, GrantedNS: 1200},
	}}
	if next, err := p.nextSale(); err != nil || next.Unit != 2 {
		t.Errorf("got unit %d, %v", next.Unit, err)
	}
	p.token = 102
	if _, err := p.nextSale(); err == nil {
		t.Error("not found: the sale after the kill has the killed till's token")
	}
	p.killed = 2000
	if _, err := p.nextSale(); err == nil {
		t.Error("not found: nothing sold after the kill")
	}
}

func TestProgressOnATerminalAndElsewhere(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out}
	s.progress(1000, 600, 400, 0)
	s.say("done")
	if got := out.String(); strings.ContainsAny(got, "\r\x1b") || !strings.Contains(got, "600 left     400 sold") {
		t.Errorf("plain: %q", got)
	}
	out.Reset()
	s = &screen{out: &out, tty: true, color: true}
	s.progress(1000, 600, 401, 0)
	s.say("done")
	if got := out.String(); !strings.Contains(got, "\x1b[31m    401 sold") || !strings.HasSuffix(got, "\r\x1b[Kdone\n") {
		t.Errorf("terminal, oversold: %q", got)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q", n, got)
		}
	}
	values := []int64{50, 10, 40, 20, 30}
	for q, want := range map[float64]int64{0.5: 30, 0.99: 50, 1: 50, 0.2: 10} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile(%v) = %d, not %d", q, got, want)
		}
	}
}
