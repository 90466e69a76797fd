package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"unicode/utf8"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
)

// settingsView is what serve --print prints. The help documents the field names of --json, which
// do not change.
type settingsView struct {
	Version  string        `json:"version"`
	Hash     string        `json:"hash"`
	Read     []string      `json:"read"`
	Unread   []string      `json:"not_read"`
	Settings []settingView `json:"settings"`
	Policy   []entryView   `json:"policy"`
}

type settingView struct {
	Key    string `json:"key"`
	Value  any    `json:"value"` // string, int, bool or []string, as in a settings file
	Origin string `json:"origin"`
	Where  string `json:"where,omitempty"` // the flag, the variable, or file:line
	Note   string `json:"note,omitempty"`
}

type entryView struct {
	Keys  map[string]any `json:"entry"`
	Where string         `json:"where"`
}

func (o origin) String() string {
	switch o {
	case fromFlag:
		return "flag"
	case fromEnv:
		return "variable"
	case fromFile:
		return "file"
	default:
		return "default"
	}
}

// whereShort returns where a setting was written; "": its default is used.
func (r *settingsResolver) whereShort(key string) string {
	if r.origins[key] == fromFile {
		return r.places[key].short()
	}
	if r.origins[key] == fromDefault {
		return ""
	}
	return r.where(key)
}

// view returns the settings that are used, of which none has a password.
func (c *serveCmd) view(cfg *sidecar.Config, target *redisTarget) *settingsView {
	r := c.resolver
	v := &settingsView{
		Version: locksidecar.Version, Hash: c.hash(target), Read: append([]string{}, r.read...), Unread: append([]string{}, r.unread...),
		Settings: []settingView{}, Policy: []entryView{},
	}
	values := reflect.ValueOf(c.settings)
	for i, key := range settingKeys() {
		s := settingView{Key: key, Value: settingValue(values.Field(i).Interface()), Origin: r.origins[key].String(), Where: r.whereShort(key)}
		if key == "redis" || key == "redis_file" || key == "embedded" {
			s.showRedis(target, r)
		}
		if s.Note == "" && s.Origin == "default" {
			s.Note = c.noteOnDefault(key, cfg)
		}
		v.Settings = append(v.Settings, s)
	}
	for i, entry := range r.policy {
		v.Policy = append(v.Policy, entryView{Keys: entryKeys(&entry), Where: r.policyPlaces[i].short()})
	}
	return v
}

// showRedis keeps one of the settings that name a Redis, that which is used: a settings file cannot
// have two of them. A URL is shown without its password.
func (s *settingView) showRedis(target *redisTarget, r *settingsResolver) {
	isSet := s.Origin != "default" && s.Value != "" && s.Value != false
	if s.Key == target.key {
		switch s.Key {
		case "redis":
			s.Value = withoutPassword(target.url, false)
			if hasPassword(target.url) {
				s.Note = "the password is left out"
			}
		case "redis_file":
			s.Note = withoutPassword(target.url, false)
		}
		return
	}
	if s.Value = any(""); s.Key == "embedded" {
		s.Value = false
	}
	switch {
	case isSet:
		s.Note = "not used: " + whereRedis(target.key, r) + " names Redis"
	case s.Key == "redis" && target.key == redisCredential:
		s.Note = "the credential " + credentialName + " names " + withoutPassword(target.url, false)
	case s.Key == "redis" && target.key == "":
		s.Note = sidecar.DefaultRedis
	}
}

// withoutPassword returns a URL of Redis that chooseRedis has accepted, without its password; its
// user, too, if isAnyUser.
func withoutPassword(raw string, isAnyUser bool) string {
	u, err := redisurl.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Public(isAnyUser)
}

// noteOnDefault returns what is used in place of a default that depends on the host or on other
// settings; "": the value says it.
func (c *serveCmd) noteOnDefault(key string, cfg *sidecar.Config) string {
	switch key {
	case "socket_group":
		return "that of the daemon"
	case "redis_ca":
		return cfg.RedisCA // from a credential, as are the next two
	case "redis_cert":
		return cfg.RedisCert
	case "redis_key":
		return cfg.RedisKey
	case "state":
		if cfg.Listener == nil {
			return cfg.Socket + ".state"
		}
	case "resume_unseen":
		return "the lease, " + c.Lease.String()
	case "host_name":
		if name, err := os.Hostname(); err == nil {
			return name
		}
	}
	return ""
}

// settingValue returns the value of a setting as a settings file has it.
func settingValue(v any) any {
	switch v := v.(type) {
	case string, int, bool:
		return v
	case []string:
		return append([]string{}, v...)
	default:
		return fmt.Sprint(v) // durations and modes are texts
	}
}

// entryKeys returns the keys that an entry of the policy has.
func entryKeys(e *policy.Entry) map[string]any {
	keys := make(map[string]any)
	v := reflect.ValueOf(e).Elem()
	for i, key := range policyKeys() {
		if field := v.Field(i); !field.IsZero() {
			keys[key] = reflect.Indirect(field).Interface()
		}
	}
	return keys
}

func (v *settingsView) printJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// text returns the settings as a settings file.
func (v *settingsView) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The settings with which locksidecar %s would serve, given this command line and environment.\n", v.Version)
	fmt.Fprintf(&b, "# Hash, as in the metric locksidecar_settings_info: %s\n", v.Hash)
	for _, path := range v.Read {
		fmt.Fprintf(&b, "# Read:     %s\n", printable(path))
	}
	for _, path := range v.Unread {
		fmt.Fprintf(&b, "# Not read: %s (its name does not end in .toml)\n", printable(path))
	}
	b.WriteString("\n")
	for _, s := range v.Settings {
		why := cmp.Or(s.Where, s.Origin)
		if s.Note != "" {
			why += ": " + s.Note
		}
		fmt.Fprintf(&b, "%-46s # %s\n", s.Key+" = "+tomlText(s.Value), printable(why))
	}
	for _, e := range v.Policy {
		fmt.Fprintf(&b, "\n[[policy]] # %s\n", printable(e.Where))
		for _, key := range policyKeys() {
			if value, has := e.Keys[key]; has {
				fmt.Fprintf(&b, "%s = %s\n", key, tomlText(value))
			}
		}
	}
	return b.String()
}

// tomlText returns a value as TOML has it.
func tomlText(v any) string {
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case []string:
		texts := make([]string, len(v))
		for i, text := range v {
			texts[i] = tomlString(text)
		}
		return "[" + strings.Join(texts, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// tomlString returns a text in quotes. The escapes of JSON are among those of TOML, which also
// escapes DEL.
func tomlString(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a string can be encoded
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}

// printable returns a text that fits into a comment of one line.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return utf8.RuneError
		}
		return r
	}, text)
}

// hash returns a number of the settings, to compare hosts. It depends on no secret. Left out is
// what differs between hosts on purpose: the name of the host, and the address of its metrics. A
// value that is the default does not count, so that a new setting of a later version changes no
// hash.
func (c *serveCmd) hash(target *redisTarget) string {
	sum := sha256.New()
	defaults := defaultSettings()
	values := reflect.ValueOf(c.settings)
	for i, key := range settingKeys() {
		switch text := settingText(values.Field(i).Interface()); key {
		case "host_name", "metrics", "redis", "redis_file", "embedded":
		default:
			if text != defaults[key] {
				fmt.Fprintf(sum, "%s=%q\n", key, text)
			}
		}
	}
	// Whatever setting names it. The user may differ between hosts.
	redis := "embedded"
	if !target.embedded {
		redis = withoutPassword(target.url, true)
	}
	if redis != sidecar.DefaultRedis {
		fmt.Fprintf(sum, "redis=%q\n", redis)
	}
	for _, entry := range c.resolver.policy {
		_ = json.NewEncoder(sum).Encode(entryKeys(&entry)) // keys are sorted, and a hash takes all bytes
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
