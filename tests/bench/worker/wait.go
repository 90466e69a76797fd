package main

// wait waits for one lock, tells when it was granted, and gives it back.
type wait struct {
	*run
	connect func(*spec) (client, error)
	worker  worker
}

func (w *wait) prepare() error {
	_, workers, err := w.connected(w.connect, 1)
	if err == nil {
		w.worker = workers[0]
	}
	return err
}

func (w *wait) start() {
	go func() {
		if !w.insist(func() error { return w.worker.lock(w.Names[0]) }) {
			return
		}
		say(event{Event: "granted", At: w.now()})
		if err := w.worker.unlock(); err != nil {
			w.add(err)
		}
	}()
}

func (*wait) finish() error { return nil }
