package wire

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What no script returns for an operation is not taken for a result of it.
func TestStatusesThatNoScriptMakes(t *testing.T) {
	n := func(n int64) Reply { return Reply{Kind: ':', Num: n} }
	text := func(s string) Reply { return Reply{Kind: '$', Text: s} }
	list := func(c StatusCode, values ...Reply) Reply {
		return Reply{Kind: '*', List: append([]Reply{n(int64(c))}, values...)}
	}
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
		if !strings.Contains(tokensText+queueText+takeText+dropText+mainText+renewText+arriveText, name) {
			t.Errorf("no script has %s", name)
		}
	}
}
