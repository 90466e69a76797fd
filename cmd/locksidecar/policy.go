package main

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// readPolicy returns the [[policy]] entries of the settings files. What their values mean is
// checked later: see placeFaults.
func (r *settingsResolver) readPolicy(tables []map[string]any) (entries []policy.Entry, err error) {
	fields := policyFields()
	var faults []error
	for i, table := range tables {
		entry := reflect.New(reflect.TypeFor[policy.Entry]()).Elem()
		name, _ := table["name"].(string)
		for _, key := range slices.Sorted(maps.Keys(table)) {
			fault := ""
			if at, known := fields[key]; !known {
				fault = "there is no such key; the keys of an entry are " + strings.Join(policyKeys(), ", ")
			} else {
				fault = setField(entry.Field(at), table[key])
			}
			if fault != "" {
				faults = append(faults, &policy.EntryError{Index: i, Name: name, Key: key, Reason: fault})
			}
		}
		entries = append(entries, entry.Interface().(policy.Entry))
	}
	return entries, r.placeFaults(errors.Join(faults...))
}

// policyKeys returns the keys of an entry, in the order of their fields.
func policyKeys() []string {
	t := reflect.TypeFor[policy.Entry]()
	keys := make([]string, t.NumField())
	for i := range keys {
		keys[i] = t.Field(i).Tag.Get("toml")
	}
	return keys
}

func policyFields() map[string]int {
	at := make(map[string]int)
	for i, key := range policyKeys() {
		at[key] = i
	}
	return at
}

// setField sets a field of an entry to a value from TOML. It returns what is wrong with the
// value; "": nothing.
func setField(field reflect.Value, value any) (fault string) {
	switch field.Interface().(type) {
	case string:
		text, ok := value.(string)
		if !ok {
			return "write a text, in quotes"
		}
		if text == "" {
			return "the text is empty; leave it out"
		}
		field.SetString(text)
	case []string:
		const want = "write a list of texts, such as [\"a\", \"b\"]"
		list, ok := value.([]any)
		if !ok {
			return want
		}
		for _, v := range list {
			text, ok := v.(string)
			if !ok {
				return want
			}
			field.Set(reflect.Append(field, reflect.ValueOf(text)))
		}
		if len(list) == 0 {
			return "the list is empty; leave it out"
		}
	case int:
		n, ok := value.(int64)
		if !ok || n < 1 || n > 1<<30 {
			return "write a whole number of 1 or more"
		}
		field.SetInt(n)
	case *bool:
		b, ok := value.(bool)
		if !ok {
			return "write true or false"
		}
		field.Set(reflect.ValueOf(&b))
	}
	return ""
}

// placeFaults adds the file and the line to each fault of the policy.
func (r *settingsResolver) placeFaults(err error) error {
	var placed []error
	for _, e := range joined(err) {
		var fault *policy.EntryError
		if !errors.As(e, &fault) {
			placed = append(placed, e)
			continue
		}
		at := r.policyPlaces[fault.Index]
		if line := at.keys[fault.Key]; line != 0 {
			at.line = line
		}
		placed = append(placed, fmt.Errorf("the settings file %s: %w", at.place, fault))
	}
	return errors.Join(placed...)
}

// joined returns the errors of which errors.Join made one.
func joined(err error) []error {
	if err == nil {
		return nil
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	return []error{err}
}

// tomlNesting is what a value has begun and not ended at the end of a line.
type tomlNesting struct {
	quotes   string // of a text over several lines: three of a kind; "": there is none
	brackets int
}

func (n *tomlNesting) isInValue() bool { return n.quotes != "" || n.brackets > 0 }

// scan reads a line, or the rest of one, of a value.
func (n *tomlNesting) scan(s string) {
	for s != "" {
		switch {
		case n.quotes != "":
			at := strings.Index(s, n.quotes)
			if at < 0 {
				return
			}
			s, n.quotes = s[at+3:], ""
			continue
		case strings.HasPrefix(s, `"""`), strings.HasPrefix(s, "'''"):
			n.quotes, s = s[:3], s[3:]
			continue
		case s[0] == '"' || s[0] == '\'':
			s = afterText(s)
			continue
		case s[0] == '#':
			return
		case s[0] == '[' || s[0] == '{':
			n.brackets++
		case s[0] == ']' || s[0] == '}':
			n.brackets--
		}
		s = s[1:]
	}
}

// afterText returns what follows the quoted text at the beginning of s.
func afterText(s string) string {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] == s[0]:
			return s[i+1:]
		}
	}
	return ""
}
