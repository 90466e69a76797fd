package link

import (
	"errors"
	"io"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// isReply reports whether an error is a reply of Redis, and not one of the connection.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
