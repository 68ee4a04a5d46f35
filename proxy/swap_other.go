//go:build !unix

package proxy

import "errors"

// canSwap: sockets can be read and written without waiting. Here http.Transport carries every request.
const canSwap = false

func readNow(uintptr, []byte) (n int, again bool, err error) { return 0, false, errors.ErrUnsupported }
func hasMore(uintptr, []byte) bool                           { return true }
func writeNow(uintptr, []byte) (int, error)                  { return 0, nil }
