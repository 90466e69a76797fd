package wire

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

func numberReply(n int64) Reply { return Reply{Kind: ':', Num: n} }

func textReply(s string) Reply { return Reply{Kind: '$', Text: s} }

// statusReply is a status with a code.
func statusReply(c StatusCode, values ...Reply) Reply {
	return Reply{Kind: '*', List: append([]Reply{numberReply(int64(c))}, values...)}
}

// What no script returns for an operation is not taken for a result of it.
func TestStatusesThatNoScriptMakes(t *testing.T) {
	n, text, list := numberReply, textReply, statusReply
	for what, c := range map[string]struct {
		kind   redisop.OpKind
		status Reply
		ok     bool
	}{
		"a taken lock":                       {redisop.Take, list(CodeTaken, n(7), n(1), n(0), n(0), n(0), n(0)), true},
		"that was made twice":                {redisop.Take, list(CodeTaken, n(7), n(2), n(0), n(0), n(0), n(0)), false},
		"with subscribers of no kind":        {redisop.Take, list(CodeTaken, n(7), n(1), n(0), n(0), n(4), n(0)), false},
		"with a text":                        {redisop.Take, list(CodeTaken, text("7"), n(1), n(0), n(0), n(0), n(0)), false},
		"too short":                          {redisop.Take, list(CodeTaken, n(7), n(1), n(0), n(0), n(0)), false},
		"too long":                           {redisop.Take, list(CodeTaken, n(7), n(1), n(0), n(0), n(0), n(0), n(0)), false},
		"a number below 0":                   {redisop.Take, list(CodeTaken, n(-7), n(1), n(0), n(0), n(0), n(0)), false},
		"of a drop":                          {redisop.Drop, list(CodeTaken, n(7), n(1), n(0), n(0), n(0), n(0)), false},
		"a lock of another owner":            {redisop.Take, list(CodeHeld, n(-2), text("a:1"), n(0), n(0)), true},
		"with a number for the owner":        {redisop.Renew, list(CodeHeld, n(5), n(1), n(0), n(0)), false},
		"a ticket":                           {redisop.Take, list(CodeQueued, n(5), text("a:1"), n(1), n(2), n(0), n(9), n(1), n(2)), true},
		"without its number":                 {redisop.Take, list(CodeQueued, n(5), text("a:1"), n(1), n(2), n(0), n(0), n(1), n(2)), false},
		"with an unknown recall":             {redisop.Take, list(CodeQueued, n(5), text("a:1"), n(1), n(2), n(0), n(9), n(1), n(3)), false},
		"an error":                           {redisop.Arrive, list(CodeRefused, text("ERR x")), true},
		"without a text":                     {redisop.Arrive, list(CodeRefused), false},
		"no code":                            {redisop.Take, list(0), false},
		"an unknown code":                    {redisop.Take, list(CodeRefused + 1), false},
		"an empty list":                      {redisop.Take, Reply{Kind: '*'}, false},
		"a list of texts":                    {redisop.Take, Reply{Kind: '*', List: []Reply{text("1")}}, false},
		"a map":                              {redisop.Take, Reply{Kind: '%', List: []Reply{n(int64(CodeMissing)), n(1)}}, false},
		"a text":                             {redisop.Take, text("ERR x"), false},
		"nil":                                {redisop.Take, Reply{}, false},
		"a token":                            {redisop.Take, n(7), true},
		"no token":                           {redisop.Take, n(0), false},
		"a drop that reached no client":      {redisop.Drop, n(0), true},
		"a number of a drop":                 {redisop.Drop, n(1), false},
		"a number of an arrival":             {redisop.Arrive, n(0), false},
		"a renewal that found other entries": {redisop.Renew, list(CodeDiffers), false},
		"a check that did":                   {redisop.Check, list(CodeDiffers), true},
	} {
		r := redisop.Result{Kind: c.kind}
		if _, _, err := Decode(c.status, &r); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "unexpected reply") {
			t.Errorf("%s: %v, %+v", what, err, r)
		}
	}
}

// The same of operations of semaphores, which have codes of their own.
func TestStatusesThatNoScriptOfPermitsMakes(t *testing.T) {
	n, text, list := numberReply, textReply, statusReply
	for what, c := range map[string]struct {
		kind   redisop.OpKind
		status Reply
		ok     bool
		want   redisop.Result // if ok
	}{
		"permits":                   {redisop.Take, list(CodePermitted, n(5), n(70), n(2)), true, redisop.Result{Permits: 5, Token: 70, Waiting: 2}},
		"without the waiting":       {redisop.Take, list(CodePermitted, n(5), n(70)), false, redisop.Result{}},
		"less than none":            {redisop.Take, list(CodePermitted, n(-5), n(70), n(2)), false, redisop.Result{}},
		"a place":                   {redisop.Take, list(CodeWanted, n(10), n(7), n(1), n(3), n(90), n(0)), true, redisop.Result{Outcome: redisop.HeldByOther, Permits: 10, TTLMS: 7, IsQueued: true, Ticket: 4, Rank: 3, Arrived: 90}},
		"none, and nothing expires": {redisop.Take, list(CodeWanted, n(10), n(-1), n(0), n(0), n(90), n(0)), true, redisop.Result{Outcome: redisop.HeldByOther, Permits: 10, TTLMS: -1, Arrived: 90}},
		"a place of a drop":         {redisop.Drop, list(CodeWanted, n(10), n(7), n(1), n(3), n(90), n(0)), false, redisop.Result{}},
		"an unknown recall":         {redisop.Take, list(CodeWanted, n(10), n(7), n(1), n(3), n(90), n(3)), false, redisop.Result{}},
		"a later number":            {redisop.Renew, list(CodeLater), true, redisop.Result{Outcome: redisop.Differs}},
		"with a number":             {redisop.Renew, list(CodeLater, n(1)), false, redisop.Result{}},
		"a claim that is gone":      {redisop.Take, list(CodeMissing), true, redisop.Result{Outcome: redisop.KeyMissing}},
		"a lock":                    {redisop.Take, list(CodeHeld, n(9), text("a:1"), n(0), n(0)), true, redisop.Result{Outcome: redisop.HeldByOther, TTLMS: 9, Field: "a:1"}},
		"a lock that was taken":     {redisop.Take, list(CodeTaken, n(7), n(1), n(0), n(0), n(0), n(0)), false, redisop.Result{}},
		"a renewal":                 {redisop.Renew, n(0), true, redisop.Result{Permits: 3}},
		"a drop":                    {redisop.Drop, n(0), true, redisop.Result{}},
		"a token":                   {redisop.Take, n(7), true, redisop.Result{Permits: 5, Token: 7}},
		"a token of a renewal":      {redisop.Renew, n(7), false, redisop.Result{}},
		"nothing for a take":        {redisop.Take, n(0), false, redisop.Result{}},
		"an unknown code":           {redisop.Take, list(CodeAway), false, redisop.Result{}},
		"a text":                    {redisop.Renew, text("ERR x"), false, redisop.Result{}},
		"an empty list":             {redisop.Renew, Reply{Kind: '*'}, false, redisop.Result{}},
	} {
		r := redisop.Result{Kind: c.kind}
		c.want.Kind = c.kind
		_, err := DecodePermits(c.status, &redisop.Op{Kind: c.kind, Of: redisop.KindPermits, HoldID: 4, Count: 3, Asked: redisop.Asked{Want: 2}}, &r)
		if (err == nil) != c.ok || c.ok && r != c.want || err != nil && !strings.Contains(err.Error(), "unexpected reply") {
			t.Errorf("%s: %v, %+v, want %+v", what, err, r, c.want)
		}
	}
}

// The same of operations of read/write locks.
func TestStatusesThatNoScriptOfReadWriteLocksMakes(t *testing.T) {
	n, text, list := numberReply, textReply, statusReply
	for what, c := range map[string]struct {
		kind   redisop.OpKind
		status Reply
		ok     bool
		want   redisop.Result // if ok
	}{
		"a share":                 {redisop.Take, list(CodeShares, n(1), n(70), n(1), n(2), n(0)), true, redisop.Result{Permits: 1, Token: 70, Made: true, Waiting: 2}},
		"readers are left":        {redisop.Drop, list(CodeShares, n(0), n(0), n(0), n(9), n(1)), true, redisop.Result{Waiting: 9, Queues: redisop.ReadersQueue}},
		"an unknown mode":         {redisop.Take, list(CodeShares, n(3), n(70), n(1), n(2), n(0)), false, redisop.Result{}},
		"without the rest":        {redisop.Take, list(CodeShares, n(1), n(70), n(1), n(2)), false, redisop.Result{}},
		"a place among readers":   {redisop.Take, list(CodeAway, n(2), n(0), n(7), text("a:1"), n(1), n(3), n(90), n(1)), true, redisop.Result{Outcome: redisop.HeldByOther, TTLMS: 7, Field: "a:1", IsQueued: true, Queues: 1, Ticket: 4, Rank: 3, Arrived: 90, Recall: 1}},
		"both, and it is free":    {redisop.Take, list(CodeAway, n(0), n(0), n(-2), text(""), n(3), n(0), n(90), n(0)), true, redisop.Result{Outcome: redisop.HeldByOther, TTLMS: -1, IsQueued: true, Queues: 3, Ticket: 4, Arrived: 90}},
		"none, and hosts share":   {redisop.Take, list(CodeAway, n(1), n(5), n(-1), text(""), n(0), n(2), n(90), n(0)), true, redisop.Result{Outcome: redisop.HeldByOther, Permits: 5, TTLMS: -1, Rank: 2, Arrived: 90}},
		"an unknown queue":        {redisop.Take, list(CodeAway, n(1), n(5), n(-1), text(""), n(4), n(2), n(90), n(0)), false, redisop.Result{}},
		"an unknown recall":       {redisop.Take, list(CodeAway, n(1), n(5), n(-1), text(""), n(0), n(2), n(90), n(3)), false, redisop.Result{}},
		"a place of a drop":       {redisop.Drop, list(CodeAway, n(1), n(5), n(-1), text(""), n(0), n(2), n(90), n(0)), false, redisop.Result{}},
		"permits":                 {redisop.Take, list(CodePermitted, n(5), n(70), n(2)), false, redisop.Result{}},
		"a later number":          {redisop.Renew, list(CodeLater), true, redisop.Result{Outcome: redisop.Differs}},
		"with a number":           {redisop.Renew, list(CodeLater, n(1)), false, redisop.Result{}},
		"a claim that is gone":    {redisop.Renew, list(CodeMissing), true, redisop.Result{Outcome: redisop.KeyMissing}},
		"a renewal":               {redisop.Renew, n(0), true, redisop.Result{Permits: 1}},
		"a drop":                  {redisop.Drop, n(0), true, redisop.Result{}},
		"a token of what is kept": {redisop.Take, n(7), true, redisop.Result{Permits: 1, Token: 7}},
		"nothing for a take":      {redisop.Take, n(0), false, redisop.Result{}},
		"a token of a renewal":    {redisop.Renew, n(7), false, redisop.Result{}},
		"a text":                  {redisop.Renew, text("ERR x"), false, redisop.Result{}},
		"an empty list":           {redisop.Renew, Reply{Kind: '*'}, false, redisop.Result{}},
	} {
		r := redisop.Result{Kind: c.kind}
		c.want.Kind = c.kind
		op := rwOp("a", 4, redisop.SharedMode, redisop.ExclusiveMode, 0)
		op.Kind = c.kind
		_, err := DecodeReadWrite(c.status, &op, &r)
		if (err == nil) != c.ok || c.ok && r != c.want || err != nil && !strings.Contains(err.Error(), "unexpected reply") {
			t.Errorf("%s: %v, %+v, want %+v", what, err, r, c.want)
		}
	}
}

// The scripts that Redis gets have numbers in place of the names.
func TestScriptsHaveNoNamesOfNumbers(t *testing.T) {
	for _, s := range Scripts {
		if name := scriptName.FindString(s.Text); name != "" {
			t.Errorf("a script has %s", name)
		}
	}
	if text := scriptText("'policy.max_offers', policy.passed_tokens"); text != "'128', 128" {
		t.Errorf("the script is %q", text)
	}
	for name := range scriptNumbers {
		if !strings.Contains(tokensText+queueText+takeText+dropText+mainText+renewText+arriveText+permitsText+rwText, name) {
			t.Errorf("no script has %s", name)
		}
	}
}
