package rawio

// HasNotified takes a notification, and reports whether there was one.
func (n *ReadNotifier) HasNotified() (yes bool) {
	_ = n.ready.Control(func(fd uintptr) { yes = takeEvent(fd) })
	return yes
}
