//go:build !unix

package proxy

// newPeek is not available here: a tunnel holds its buffers while it waits.
func newPeek() func(fd uintptr) bool { return nil }
