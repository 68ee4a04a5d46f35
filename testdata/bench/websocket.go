package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Opcodes of RFC 6455, section 5.2.
const (
	opBinary = 2
	opClose  = 8
)

// frameHead is the head of one unfragmented frame of at most 64 KiB. The mask is zero: it is valid and leaves the message as it is.
func frameHead(opcode byte, n int, masked bool) []byte {
	head := []byte{0x80 | opcode, byte(n)}
	if n > 125 {
		head = binary.BigEndian.AppendUint16([]byte{0x80 | opcode, 126}, uint16(n))
	}
	if masked {
		head[1] |= 0x80
		head = append(head, 0, 0, 0, 0)
	}
	return head
}

// readFrame reads one frame of at most 64 KiB; the message is in buf if it fits.
func readFrame(in *bufio.Reader, buf []byte) (opcode byte, message []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(head[1] & 0x7f)
	if n == 126 {
		var long [2]byte
		if _, err := io.ReadFull(in, long[:]); err != nil {
			return 0, nil, err
		}
		n = int(binary.BigEndian.Uint16(long[:]))
	}
	var mask [4]byte
	if head[1]&0x80 != 0 {
		if _, err := io.ReadFull(in, mask[:]); err != nil {
			return 0, nil, err
		}
	}
	if n > len(buf) {
		buf = make([]byte, n)
	}
	message = buf[:n]
	if _, err := io.ReadFull(in, message); err != nil {
		return 0, nil, err
	}
	for i := range message {
		message[i] ^= mask[i%4]
	}
	return head[0] & 0xf, message, nil
}

// webSocket is a client's end.
type webSocket struct {
	net.Conn
	in *bufio.Reader
}

func openWebSocket(addr, host, token string) (*webSocket, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nAuthorization: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", host, token); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 2<<10)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("the handshake was answered %s", res.Status)
	}
	return &webSocket{conn, in}, nil
}

// ping sends a message and waits for its echo.
func (w *webSocket) ping(message []byte) error {
	if _, err := w.Write(append(frameHead(opBinary, len(message), true), message...)); err != nil {
		return err
	}
	_, echoed, err := readFrame(w.in, make([]byte, 256))
	if err == nil && len(echoed) != len(message) {
		err = fmt.Errorf("%d bytes were echoed as %d", len(message), len(echoed))
	}
	return err
}

// webSockets has connections that send a message of 128 bytes, wait for the echo and send the next. It prints how many came back.
func webSockets(args []string) error {
	fs := flags("ws")
	addr, host, token := target(fs)
	connections := fs.Int("c", 64, "connections")
	lasting := fs.Duration("d", 3*time.Second, "how long")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var echoed atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, *connections)
	end := time.Now().Add(*lasting)
	for range *connections {
		all.Go(func() {
			w, err := openWebSocket(*addr, *host, *token)
			if err != nil {
				failed <- err
				return
			}
			defer w.Close()
			for time.Now().Before(end) {
				if err := w.ping(kibibyte[:128]); err != nil {
					failed <- err
					return
				}
				echoed.Add(1)
			}
		})
	}
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		fmt.Println(echoed.Load())
		return nil
	}
}
