package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// login stands for the cluster's web interface, where people get the cookie that the proxy asks browsers for. It hands it
// out to whoever has the link that the demo prints: the links hold a key of this run, and lead to loopback.
type login struct {
	link   string // without the login at its end
	server *http.Server
	done   chan struct{} // closed when it has ended
}

// startLogin serves links that set a user's cookie for every service, and lead on to the target.
func startLogin(ctx context.Context, baseDomain, target string, users ...user) (*login, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the log-in page: %w", err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("the log-in page: %w", err)
	}
	path := "/" + rand.Text() + "/"
	mux := http.NewServeMux()
	for _, user := range users {
		mux.HandleFunc("GET "+path+user.Login, func(w http.ResponseWriter, r *http.Request) {
			http.SetCookie(w, &http.Cookie{
				Name: user.CookieName, Value: user.Cookie,
				Domain: baseDomain, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
			})
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Referrer-Policy", "no-referrer") // the key is nothing for jobs to read
			http.Redirect(w, r, target, http.StatusSeeOther)
		})
	}
	l := &login{
		link:   "http://login." + baseDomain + ":" + port + path,
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second},
		done:   make(chan struct{}),
	}
	go func() {
		defer close(l.done)
		// It ends by close only; a listener that breaks costs the demo a convenience.
		if err := l.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			listener.Close()
		}
	}()
	return l, nil
}

// close ends it and waits for it.
func (l *login) close() error {
	err := l.server.Close()
	<-l.done
	if err != nil {
		return fmt.Errorf("the log-in page: %w", err)
	}
	return nil
}
