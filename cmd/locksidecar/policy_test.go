package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/policy"
)

func TestPolicyIsReadFromTheSettingsFile(t *testing.T) {
	cleanEnv(t)
	c, err := parseServe(t, "--config", writeFile(t, "s.toml", `
max_locks = 7

[[policy]]
name = "team-a"
users = ["0", "1000"]
names = [
  "a:*", # theirs
  "[[policy]]",
]
acquire = "allow"
commands = false
holds = 10

[[policy]]
name = "rest"
acquire = "deny"
longest_hold = "1m"
`))
	if err != nil {
		t.Fatal(err)
	}
	got := c.resolver.policy
	if len(got) != 2 || got[0].Name != "team-a" || !slices.Equal(got[0].Names, []string{"a:*", "[[policy]]"}) || got[0].Holds != 10 ||
		got[0].Commands == nil || *got[0].Commands || got[1].Acquire != "deny" || got[1].LongestHold != "1m" {
		t.Errorf("%+v", got)
	}
	if c.MaxLocks != 7 {
		t.Errorf("max_locks %d, want the file's 7", c.MaxLocks)
	}
}

// A person who reads the error finds the place.
func TestBadPolicyEntryIsNamedWithItsLine(t *testing.T) {
	const good = `lease = "30s" # [[policy]]

[[policy]]
name = "good"
names = ["x",
  "[[policy]]", '''
[[policy]]
'''] # }
holds = 1

`
	for _, tt := range []struct{ name, entry, want string }{
		{"an unknown key", "[[policy]]\nname = 'x'\nhold = 3", `line 13: entry 2 of the policy ("x"): hold: there is no such key; the keys of an entry are name, users,`},
		{"a value of the wrong type", "[[policy]]\nname = 'x'\n\n'holds' = 'many'", `line 14: entry 2 of the policy ("x"): holds: write a whole number of 1 or more`},
		{"a limit of 0", "[[policy]]\nname = 'x'\nholds = 0", "line 13: entry 2"},
		{"a text for a list", "[[policy]]\nname = 'x'\nusers = 'root'", "line 13: entry 2 of the policy (\"x\"): users: write a list of texts"},
		{"numbers in a list", "[[policy]]\nname = 'x'\nusers = [1000]", "users: write a list of texts"},
		{"an empty list", "[[policy]]\nname = 'x'\nusers = []", "users: the list is empty"},
		{"an empty text", "[[policy]]\nname = 'x'\nacquire = ''", "acquire: the text is empty"},
		{"a number for a switch", "[[policy]]\nname = 'x'\ncommands = 0", "commands: write true or false"},
		{"an unknown user", "[[policy]]\nname = 'x'\nholds = 1\nusers = ['no-such-user']", `line 14: entry 2 of the policy ("x"): users: "no-such-user": there is no such name on this host`},
		{"an entry that decides nothing", "[[ policy ]]\nname = 'x'", `line 11: entry 2 of the policy ("x"): it decides nothing`},
		{"an entry without a name", "[[policy]]\nholds = 1", "line 11: entry 2 of the policy: it has no name"},
		{"a table after it", "[[policy]]\nname = 'x'\nper = 'all'\nholds = 1\n[[policy]]\nname = 'x'\nholds = 1", `line 16: entry 3 of the policy ("x"): name: another entry has the same name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			path := writeFile(t, "s.toml", good+tt.entry)
			c := cli{}
			var out bytes.Buffer
			parser := newParser(&c, &out, &out)
			parsed, err := parser.Parse([]string{"serve", "--check", "--embedded", "--config", path})
			if err == nil {
				_, _, err = c.Serve.read(parsed)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// A policy is in the file only: there is no flag and no variable.
func TestPolicyIsNoFlag(t *testing.T) {
	cleanEnv(t)
	if _, err := parseServe(t, "--policy", "x"); err == nil {
		t.Error("--policy is accepted")
	}
	for _, key := range policyKeys() {
		if key == "" {
			t.Errorf("a field of %T has no key", policy.Entry{})
		}
	}
}

// The examples of the document and of the example of settings are policies, and the document has every
// key.
func TestExamplesOfPoliciesAreValid(t *testing.T) {
	cleanEnv(t)
	document, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("../../deploy/locksidecar.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	var examples []string
	for i, part := range strings.Split(string(document), "```") {
		if text, isTOML := strings.CutPrefix(part, "toml\n"); i%2 == 1 && isTOML {
			examples = append(examples, text)
		}
	}
	_, commented, found := strings.Cut(string(file), "#\n# [[policy]]")
	if !found || len(examples) < 4 {
		t.Fatalf("%d examples in the document, and found in the settings file: %v", len(examples), found)
	}
	examples = append(examples, regexp.MustCompile(`(?m)^# ?`).ReplaceAllString("# [[policy]]"+commented, ""))
	anyone := func(string) (int64, error) { return 7, nil } // of the examples, no user is on this host
	for _, text := range examples {
		c, err := parseServe(t, "--config", writeFile(t, "s.toml", text))
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		if len(c.resolver.policy) == 0 {
			t.Errorf("no entry in\n%s", text)
		}
		if _, err := policy.New(c.resolver.policy, policy.Resolver{User: anyone, Group: anyone}); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	checkExamples(t, examples)
	for _, key := range policyKeys() {
		if !strings.Contains(string(document), "`"+key+"`") && key != "name" {
			t.Errorf("the document does not have the key %s", key)
		}
		if !strings.Contains(commented, key) {
			t.Errorf("the settings file does not have the key %s", key)
		}
	}
}
