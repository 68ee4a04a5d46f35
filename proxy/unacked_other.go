//go:build !linux

package proxy

import "net"

// limitUnacked is not available here.
func limitUnacked(net.Conn) {}
