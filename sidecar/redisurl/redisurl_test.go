package redisurl

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		raw, server string
		sentinel    *Sentinel
		shown       string
	}{
		{"redis://u:p@h:6379/3?db=4", "redis://u:p@h:6379/3?db=4", nil, "redis://u@h:6379/3"},
		{"unix:///run/redis.sock?db=2&password=p", "unix:///run/redis.sock?db=2&password=p", nil, "unix:///run/redis.sock"},
		{
			"redis+sentinel://u:p@s1,s2:1,[::1]:2,s1:26379/mymaster/3?sentinel_username=su&sentinel_password=s%2Fp&sentinel_tls=true&dial_timeout=1s",
			"redis://u:p@s1:26379/3?dial_timeout=1s",
			&Sentinel{Master: "mymaster", Addresses: []string{"s1:26379", "s2:1", "[::1]:2"}, Username: "su", Password: "s/p", TLS: true},
			"redis+sentinel://u@s1:26379,s2:1,[::1]:2/mymaster/3",
		},
		{"rediss+sentinel://s1/m", "rediss://s1:26379/", &Sentinel{Master: "m", Addresses: []string{"s1:26379"}}, "rediss+sentinel://s1:26379/m"},
		{"redis-sentinel://:p@s1,s2/1?sentinelMasterId=m", "redis://:p@s1:26379/1", &Sentinel{Master: "m", Addresses: []string{"s1:26379", "s2:26379"}}, "redis+sentinel://s1:26379,s2:26379/m/1"},
		{"redis-sentinel://p@s1/1?sentinelMasterId=m", "redis://:p@s1:26379/1", &Sentinel{Master: "m", Addresses: []string{"s1:26379"}}, "redis+sentinel://s1:26379/m/1"},
		{"redis+sentinel://s1/m?sentinel_password=a+b%2B", "redis://s1:26379/", &Sentinel{Master: "m", Addresses: []string{"s1:26379"}, Password: "a+b+"}, "redis+sentinel://s1:26379/m"},
		{"redis+sentinel://u:p%40@s1/m/", "redis://u:p%40@s1:26379/", &Sentinel{Master: "m", Addresses: []string{"s1:26379"}}, "redis+sentinel://u@s1:26379/m"},
	} {
		u, err := Parse(tt.raw)
		if err != nil {
			t.Errorf("%s: %v", tt.raw, err)
			continue
		}
		if got := u.Server.String(); got != tt.server {
			t.Errorf("%s: the server is %s, want %s", tt.raw, got, tt.server)
		}
		if got := u.String(); got != tt.shown {
			t.Errorf("%s: shown as %s, want %s", tt.raw, got, tt.shown)
		}
		switch s := u.Sentinel; {
		case (s == nil) != (tt.sentinel == nil):
			t.Errorf("%s: %+v", tt.raw, s)
		case s != nil && (s.Master != tt.sentinel.Master || !slices.Equal(s.Addresses, tt.sentinel.Addresses) ||
			s.Username != tt.sentinel.Username || s.Password != tt.sentinel.Password || s.TLS != tt.sentinel.TLS):
			t.Errorf("%s: %+v, want %+v", tt.raw, *s, *tt.sentinel)
		}
	}
}

func TestParseCluster(t *testing.T) {
	for raw, want := range map[string][3]string{ // the server, the nodes, and how it is shown
		"redis+cluster://n1":                             {"redis://n1:6379", "n1:6379", "redis+cluster://n1:6379"},
		"redis+cluster://u:p@n1,[::1]:7,n1:6379/0":       {"redis://u:p@n1:6379", "n1:6379 [::1]:7", "redis+cluster://u@n1:6379,[::1]:7"},
		"rediss+cluster://:p@n1:1,n2:2?dial_timeout=1s":  {"rediss://:p@n1:1?dial_timeout=1s", "n1:1 n2:2", "rediss+cluster://n1:1,n2:2"},
		"redis+cluster://n1?db=0":                        {"redis://n1:6379?db=0", "n1:6379", "redis+cluster://n1:6379"},
		"redis+cluster://user:1%2F2@n1.example:7000,n2/": {"redis://user:1%2F2@n1.example:7000", "n1.example:7000 n2:6379", "redis+cluster://user@n1.example:7000,n2:6379"},
	} {
		u, err := Parse(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if got := [3]string{u.Server.String(), strings.Join(u.Nodes, " "), u.String()}; got != want || u.Sentinel != nil {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const secret = "sec:ret/#"
	for raw, says := range map[string]string{
		"":                                        "no Redis URL",
		"http://h":                                `begins with "http"`,
		"h:6379":                                  "no redis:// at its beginning",
		"127.0.0.1:6379":                          "no redis:// at its beginning",
		"127.0.0.1":                               "no redis:// at its beginning",
		"redis://h:63a79":                         "the port is not a number",
		"redis://u:a%zz@h":                        "two hexadecimal digits",
		"redis://u:a b@h":                         "the user or the password has a character",
		"redis://h\n":                             "a line break",
		"redis://a b":                             "the host has a character",
		"redis://[::1":                            "has no ]",
		"unix://":                                 "names no socket",
		"unix://run/redis.sock":                   "and not three",
		"redis://u:" + secret + "@h":              "",
		"redis+sentinel://":                       "without a host",
		"redis+sentinel:///m":                     "without a host",
		"redis+sentinel://s1":                     "names no master",
		"redis+sentinel://s1/":                    "names no master",
		"redis+sentinel://s1//0":                  "names no master",
		"redis+sentinel://s1,/m":                  "without a host",
		"redis+sentinel://s1:x/m":                 "a port that is not a number",
		"redis+sentinel://s1/m/0/1":               "more than a master and a database",
		"redis+sentinel://user:12/w@s1/0":         "percent-encoded",
		"redis+sentinel://s1/a%20b":               "a space",
		"redis+sentinel://s1/m?sentinel_tls=yes":  "sentinel_tls",
		"redis+sentinel://s1/m?a=%zz":             "cannot be read",
		"redis+sentinel://s1/m?sentinelMasterId=": "names no master",
		"redis+cluster://":                        "without a host",
		"redis+cluster://n1:x":                    "a port that is not a number",
		"redis+cluster://n1,,n2":                  "a node without a host",
		"redis+cluster://n1/1":                    "database 0 only",
		"redis+cluster://n1?db=2":                 "database 0 only",
		"redis+cluster://u:" + secret + "@n1":     "",
		"redis+cluster://" + strings.Repeat("n,", 64) + "n":    "more than 64 nodes",
		"redis+sentinel://" + strings.Repeat("s,", 64) + "s/m": "more than 64",
	} {
		_, err := Parse(raw)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", raw, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "ret") && raw != "" && strings.Contains(raw, secret) {
			t.Errorf("the error repeats a part of the password: %v", err)
		}
	}
}

// The danger: a password is logged, or printed.
func TestNoPasswordIsPublic(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://u:secret@h/1":                      "redis://u@h/1",
		"redis://h?password=secret&username=u&db=2": "redis://h?db=2&username=u",
		"redis+sentinel://u:secret@s/m?sentinel_password=secret&sentinel_username=w&sentinel_tls=true": "redis+sentinel://u@s:26379/m?sentinel_tls=true&sentinel_username=w",
		"redis+sentinel://s/m?sentinel_password=x&secret&db=1":                                         "redis+sentinel://s:26379/m?db=1",
		"redis+sentinel://s/m?sentinel_pw=secret&sentinel_password=secret":                             "redis+sentinel://s:26379/m",
		"redis-sentinel://secret@s/0?sentinelMasterId=m":                                               "redis+sentinel://s:26379/m/0",
		"redis+sentinel://s/m?sentinel_password=secret":                                                "redis+sentinel://s:26379/m",
		"redis+sentinel://s/m?Sentinel_Passwd=secret":                                                  "redis+sentinel://s:26379/m",
	} {
		u, err := Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := u.Public(false); got != want {
			t.Errorf("%s is shown as %s", raw, got)
		}
		if got := u.Public(true) + u.String(); strings.Contains(got, "secret") || strings.Contains(u.Public(true), "u@") || strings.Contains(u.Public(true), "=u") || strings.Contains(u.Public(true), "=w") {
			t.Errorf("%s is shown as %s", raw, got)
		}
		if !u.HasPassword() && !strings.Contains(raw, "Passwd") {
			t.Errorf("%s has a password", raw)
		}
	}
	for _, raw := range []string{"redis://u@h", "redis+sentinel://u@s/m?sentinel_username=w"} {
		if u, err := Parse(raw); err != nil || u.HasPassword() {
			t.Errorf("%s has no password: %v", raw, err)
		}
	}
}

// The operator is told which option is wrong, unless it may be a part of a password.
func TestMayQuoteOptions(t *testing.T) {
	for raw, want := range map[string]bool{
		"redis://:secret@h/0?dbb=1":                               true,
		"redis+sentinel://:secret@s/m?sentinel_user=w":            true,
		"redis+cluster://:secret@n?dbb=1":                         true,
		"redis://u:pa@ss?se&cret@h/0":                             false,
		"redis://u:pa@ss?se&cret%40h/0":                           false,
		"redis://u:pa@ss/se/cret@h/0":                             false,
		"redis://u:pa@ss#se&cret@h/0":                             false,
		"redis://h?password=se&cret":                              false,
		"redis+sentinel://s/m?sentinel_password=se&cret":          false,
		"redis+sentinel://u:pa@ss/m?x=1&cret@s/m":                 false,
		"redis+cluster://u:pa@ss?se&cret@h":                       false,
		"unix://:secret@/run/redis.sock?dbb=1":                    true,
		"redis+sentinel://s/m?sentinel_passwd=secret&client_name": true,
	} {
		u, err := Parse(raw)
		if err != nil {
			t.Fatal(raw, err)
		}
		if got := u.MayQuoteOptions(); got != want {
			t.Errorf("%s: %v", raw, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("redis+sentinel://u:p@s1,s2:1/mymaster/3?sentinel_password=p")
	f.Add("unix:///a?b")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := Parse(raw)
		if err != nil {
			return
		}
		shown := u.Public(false)
		if again, err := Parse(shown); err == nil && again.HasPassword() {
			t.Errorf("%q is shown as %q, which has a password", raw, shown)
		}
	})
}
