package main

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

// authz answers other proxies' questions about callers. It stands for the cluster, with an answer that takes -delay, and for
// the little server that an admin would write between the cluster and such a proxy: /auth asks the cluster twice, who is
// calling and whether they may, as the task proxy does for a caller it does not know.
func authz(args []string) error {
	fs := flags("authz")
	addr := fs.String("listen", "", "host:port")
	delay := fs.Duration("delay", 2*time.Millisecond, "how long the cluster takes for one answer")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cluster := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}
	ask := func(r *http.Request, path string) (bool, error) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+*addr+path, nil)
		if err != nil {
			return false, err
		}
		req.Header.Set("Authorization", r.Header.Get("Authorization"))
		res, err := cluster.Do(req)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		copyOut(res.Body)
		return res.StatusCode == http.StatusOK, nil
	}
	mux := http.NewServeMux()
	// Envoy puts the request's own path behind the one that is configured.
	mux.HandleFunc("/auth/", func(w http.ResponseWriter, r *http.Request) {
		for _, path := range []string{"/whoami", "/check_operation_permission"} {
			switch yes, err := ask(r, path); {
			case err != nil:
				w.WriteHeader(http.StatusBadGateway)
				return
			case !yes:
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
		}
		w.Header().Set("X-User", "alice")
		w.Header().Set("Cache-Control", "max-age=60")
	})
	mux.HandleFunc("/whoami", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(*delay)
		if r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"login":"alice"}`)
	})
	mux.HandleFunc("/check_operation_permission", func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(*delay)
		_, _ = io.WriteString(w, `{"action":"allow"}`)
	})
	return fmt.Errorf("serve: %w", http.ListenAndServe(*addr, mux))
}
