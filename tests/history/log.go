package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// A Recorder appends events to a log. Any number of goroutines may use it.
type Recorder struct {
	file   *os.File
	client string
}

// Record opens the log of a client, or of the conductor, in a directory.
func Record(dir, client string) (*Recorder, error) {
	file, err := os.OpenFile(filepath.Join(dir, client+suffix), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &Recorder{file: file, client: client}, nil
}

const suffix = ".jsonl"

// Write appends an event. An event without a client is one of this client. A log with gaps could
// look like a violation, so Write panics if it fails.
func (r *Recorder) Write(e Event) {
	if e.Client == "" {
		e.Client = r.client
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("cannot write %s: %v", r.file.Name(), err))
	}
}

// Close closes the log.
func (r *Recorder) Close() error { return r.file.Close() }

// Load reads all logs of a directory. The last line of a log may be incomplete.
func Load(dir string) ([]Event, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	var events []Event
	for _, name := range names {
		log, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for n := 1; ; n++ {
			line, rest, whole := bytes.Cut(log, []byte("\n"))
			if !whole {
				break
			}
			log = rest
			var e Event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, n, err)
			}
			events = append(events, e)
		}
	}
	return events, nil
}
