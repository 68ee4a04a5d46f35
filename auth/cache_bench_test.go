package auth

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/ytclient"
)

// BenchmarkHit is what authentication costs a request whose answers are remembered.
func BenchmarkHit(b *testing.B) {
	creds := token("ytct-0123456789abcdef0123456789abcdef")
	a := newAuthorizer(b, Config{Cluster: &cluster{}, Registerer: prometheus.NewRegistry()})
	hit := func(b *testing.B) {
		who, err := a.Authenticate(b.Context(), nowhere, creds)
		if err != nil {
			b.Error(err)
		}
		if _, err := a.Authorize(b.Context(), who.Login, "1-2-3e803e8-4", read); err != nil {
			b.Error(err)
		}
	}
	hit(b)
	b.Run("authenticate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = a.Authenticate(b.Context(), nowhere, creds)
		}
	})
	b.Run("authorize", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = a.Authorize(b.Context(), "alice", "1-2-3e803e8-4", read)
		}
	})
	b.Run("both", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			hit(b)
		}
	})
	b.Run("both/parallel", func(b *testing.B) { // at -cpu 2, two goroutines and one key
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				hit(b)
			}
		})
	})
}

// BenchmarkUsers has more callers than room, some of them far busier than others, and reports how often the cluster need
// not be asked.
func BenchmarkUsers(b *testing.B) {
	const capacity = 4096
	for _, users := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprintf("users=%d", users), func(b *testing.B) {
			c := &cluster{whoAmI: func(_ context.Context, cr ytclient.Credentials) (string, error) { return cr.Secret, nil }}
			a := newAuthorizer(b, Config{Cluster: c, Capacity: capacity})
			creds := make([]ytclient.Credentials, users)
			for i := range creds {
				creds[i] = token("token-of-user-" + strconv.Itoa(i))
			}
			var lookups, goroutine atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				random := rand.New(rand.NewPCG(1, uint64(goroutine.Add(1))))
				zipf := rand.NewZipf(random, 1.1, 8, uint64(users-1))
				n := 0
				for ; pb.Next(); n++ {
					who, err := a.Authenticate(b.Context(), nowhere, creds[zipf.Uint64()])
					if err == nil {
						_, err = a.Authorize(b.Context(), who.Login, "1-2-3e803e8-4", read)
					}
					if err != nil {
						b.Error(err)
					}
				}
				lookups.Add(int64(2 * n))
			})
			asked := c.whoAmIs.Load() + c.checks.Load()
			b.ReportMetric(1-float64(asked)/float64(lookups.Load()), "hits/lookup")
		})
	}
}

// BenchmarkFromRequest is the parsing of a browser's headers.
func BenchmarkFromRequest(b *testing.B) {
	r := request(b, "Cookie: _ga=GA1.2.3; session=0123456789; YTCypressCookie=0123456789abcdef; theme=dark",
		"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Accept: */*")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromRequest(r, cookieName); err != nil {
			b.Fatal(err)
		}
	}
}
