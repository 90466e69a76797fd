package sidecar

import "github.com/locksidecar/locksidecar/protocol"

// A page of an answer is filled with so many bytes of rows.
const pageSize = 16 << 10

// queueReply queues a frame until the end of the step.
func (l *loop) queueReply(c *conn, m protocol.Reply) {
	c.queueReply(m)
	if !c.dirty {
		c.dirty = true
		l.dirty = append(l.dirty, c)
	}
}

// refuse answers a request with an error.
func (l *loop) refuse(c *conn, id uint64, code protocol.Code, msg string) {
	l.failed = protocol.Err{ID: id, Code: code, Msg: msg}
	l.queueReply(c, &l.failed)
}

// closeAfterFlush has a connection end with a last frame, when everything that led to it
// is in the state.
func (l *loop) closeAfterFlush(c *conn, m protocol.Reply) {
	l.closing = append(l.closing, closing{c, m})
}
