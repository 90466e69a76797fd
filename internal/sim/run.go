package sim

import (
	"fmt"
	"runtime/debug"
)

// play runs one seed to its end and returns what went wrong, or nil.
func play(seed uint64, spoil spoiler, trace bool) (w *world, err error) {
	w = newWorld(seed, spoil)
	w.trace.on = trace
	return w, w.toItsEnd()
}

// toItsEnd runs a world, and returns what went wrong, or nil.
func (w *world) toItsEnd() (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			err = r
		default:
			err = violation{w.seed, w.steps, w.now, -1, fmt.Sprintf("panic: %v\n%s", r, debug.Stack())}
		}
	}()
	w.run()
	return nil
}
