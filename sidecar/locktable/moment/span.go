package moment

import "time"

// Span is how long something lasts, if that is set. The zero value is not set: the default counts.
type Span struct {
	d     time.Duration
	isSet bool
}

// SpanOf returns a span that is set, also one of no length.
func SpanOf(d time.Duration) Span { return Span{d, true} }

// Or returns how long it is, or the default if it is not set.
func (s Span) Or(byDefault time.Duration) time.Duration {
	if s.isSet {
		return s.d
	}
	return byDefault
}

func (s Span) String() string {
	if !s.isSet {
		return "default"
	}
	return s.d.String()
}
