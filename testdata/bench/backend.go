package main

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
)

// Bodies of the answers.
var (
	kibibyte = bytes.Repeat([]byte("0123456789abcdef"), 64)
	mebibyte = bytes.Repeat(kibibyte, 1024)
	small    = append([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n"), kibibyte...)
)

// backend is the job: HTTP/1.1 at the first of its two ports, gRPC at the second. Its HTTP is as cheap as it can be made, so
// that the machine's time goes to the proxies.
func backend([]string) error {
	web, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("YT_PORT_0"))
	if err != nil {
		return err
	}
	calls, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("YT_PORT_1"))
	if err != nil {
		return err
	}
	go func() { log.Fatal(newGreeter().Serve(calls)) }()
	for {
		conn, err := web.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			in := bufio.NewReaderSize(conn, 8<<10)
			for answer(conn, in) == nil {
			}
		}()
	}
}

// errClosing ends a connection whose client asked for its end.
var errClosing = errors.New("the client closes the connection")

// answer answers one request: 1 KiB, /big?n=BYTES of them, or a WebSocket that echoes. It reads no bodies: the load has none.
func answer(conn net.Conn, in *bufio.Reader) error {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return fmt.Errorf("request line %q", line)
	}
	path := string(fields[1])
	var key string
	var closing bool
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		switch i := bytes.IndexByte(line, ':'); {
		case i == len("Connection") && bytes.EqualFold(line[:i], []byte("Connection")):
			closing = bytes.EqualFold(bytes.TrimSpace(line[i+1:]), []byte("close"))
		case i == len("Sec-WebSocket-Key") && bytes.EqualFold(line[:i], []byte("Sec-WebSocket-Key")):
			key = string(bytes.TrimSpace(line[i+1:]))
		}
	}
	switch {
	case key != "":
		return echo(conn, in, key)
	case path == "/":
		_, err = conn.Write(small)
	default:
		err = answerBig(conn, path)
	}
	if err == nil && closing {
		err = errClosing
	}
	return err
}

func answerBig(conn net.Conn, path string) error {
	target, err := url.Parse(path)
	if err != nil {
		return err
	}
	left, err := strconv.Atoi(target.Query().Get("n"))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 %d OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", http.StatusOK, left); err != nil {
		return err
	}
	for left > 0 {
		n, err := conn.Write(mebibyte[:min(left, len(mebibyte))])
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

func echo(conn net.Conn, in *bufio.Reader, key string) error {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:])); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		opcode, message, err := readFrame(in, buf)
		if err != nil {
			return err
		}
		if _, err := conn.Write(append(frameHead(opcode, len(message), false), message...)); err != nil {
			return err
		}
		if opcode == opClose {
			return io.EOF
		}
	}
}
