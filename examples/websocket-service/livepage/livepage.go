// Package livepage is a web page that stays connected to its job in two ways: a WebSocket that echoes, and a stream of
// server-sent events that ticks each second.
package livepage

import (
	"context"
	_ "embed" // for the page
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"taskproxy/examples/job"
)

// UserHeader is where the task proxy tells the caller's login. It informs: whoever reaches the job's port without the
// proxy can write it too, so nothing may be decided by it.
const UserHeader = "X-Yt-Taskproxy-User"

const (
	maxMessage = 1 << 20 // bytes that the echo takes in one message
	period     = time.Second
)

//go:embed page.html
var page []byte

// Tick is the data of one event.
type Tick struct {
	Job  job.Info  `json:"job"`
	User string    `json:"user"` // the caller's login; empty without the proxy
	N    int       `json:"n"`    // counts from 1 in each stream
	Time time.Time `json:"time"`
}

// Serve is the job's work: it answers on the listener until the context ends. WebSockets are then closed with the status
// "going away", and waited for.
func Serve(ctx context.Context, info job.Info, listener net.Listener) error {
	s := &service{info: info}
	err := job.ServeHTTP(ctx, listener, s.handler())
	s.echoes.Wait() // the server does not know connections that were taken over
	return err
}

type service struct {
	info   job.Info
	echoes sync.WaitGroup
}

// handler serves the page at /, the echo at /echo, the ticks at /events.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Write(page)
	})
	mux.HandleFunc("GET /echo", s.echo)
	mux.HandleFunc("GET /events", s.events)
	return mux
}

// echo sends every message back as it came. With ?greet in the address its first message is of its own and names the job.
func (s *service) echo(w http.ResponseWriter, r *http.Request) {
	s.echoes.Add(1)
	defer s.echoes.Done()
	// Accept refuses pages of other hosts: it compares Origin with Host, which the task proxy hands on as it was.
	connection, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer connection.CloseNow()
	connection.SetReadLimit(maxMessage)
	ctx := context.WithoutCancel(r.Context())
	end := context.AfterFunc(r.Context(), func() {
		connection.Close(websocket.StatusGoingAway, "the job ends")
	})
	defer end()

	if r.URL.Query().Has("greet") {
		greeting := fmt.Sprintf("Hello, %s! This is %s.", name(r), s.info)
		if err := connection.Write(ctx, websocket.MessageText, []byte(greeting)); err != nil {
			return
		}
	}
	for {
		kind, message, err := connection.Read(ctx)
		if err != nil {
			return
		}
		if err := connection.Write(ctx, kind, message); err != nil {
			return
		}
	}
}

// events sends a tick at once and then each second.
func (s *service) events(w http.ResponseWriter, r *http.Request) {
	stream := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for n := 1; ; n++ {
		data, err := json.Marshal(Tick{Job: s.info, User: r.Header.Get(UserHeader), N: n, Time: time.Now().UTC()})
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "id: %d\nevent: tick\ndata: %s\n\n", n, data); err != nil {
			return
		}
		if err := stream.Flush(); err != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

// name is how the greeting addresses its reader.
func name(r *http.Request) string {
	if user := r.Header.Get(UserHeader); user != "" {
		return user
	}
	return "stranger"
}
