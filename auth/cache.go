package auth

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// maxShards is into how many parts a cache is split, so that requests of different callers do not wait for one lock.
	maxShards = 16
	// minShardEntries is below what a part would be too small for the keys to spread evenly.
	minShardEntries = 64

	// holdFor is how long after an attempt that could not reach the cluster an expired yes is given without waiting for
	// another attempt: without it, each request of an outage would take the whole call timeout. It is also the longest
	// time for which such a yes outlives the outage.
	holdFor = 5 * time.Second
	// attemptPause is the least time between two attempts in the background for one entry.
	attemptPause = time.Second
)

// lifetimes is how long answers count, from the moment at which the question was asked.
type lifetimes struct {
	grant time.Duration // a yes
	deny  time.Duration // a no
	stale time.Duration // a yes while the cluster cannot be asked; negative: not at all
}

// outcome is what is known about a question.
type outcome int

const (
	missing   outcome = iota // nothing; ask
	granted                  // the cluster said yes
	held                     // it said so too long ago, but now it cannot be asked
	refused                  // it said no
	undecided                // it was asked and gave no answer that counts
)

// answer is an outcome with what belongs to it.
type answer[V any] struct {
	outcome outcome
	value   V             // of granted and held
	err     error         // of refused and undecided
	cached  bool          // nobody waited for the cluster
	expires time.Duration // of granted and held: until when it counts, from the cache's start
}

// grant is a remembered yes. Moments are distances from the cache's start, on the monotonic clock. All but the last two
// fields are fixed.
type grant[V any] struct {
	value   V
	asked   time.Duration
	renewAt time.Duration // from here on, a use asks again in the background
	expires time.Duration
	tried   atomic.Int64 // when the last attempt in the background began or failed
	held    atomic.Int64 // until when it counts, though expired, without asking first
}

// refusal is a remembered no.
type refusal struct {
	err     error
	asked   time.Duration
	expires time.Duration
}

// cache remembers the answers to one kind of question. A yes and a no are kept apart: whoever floods the proxy with
// random tokens fills the latter and pushes out nobody's good entry. It is safe for concurrent use.
type cache[K comparable, V any] struct {
	start  time.Time
	life   lifetimes
	seed   maphash.Seed
	shards []*shard[K, V]

	evictedGrants, evictedRefusals atomic.Int64 // for want of room
}

// shard is a part of a cache, and of the calls under way for it (flight.go).
type shard[K comparable, V any] struct {
	grants   *lru.Cache[K, *grant[V]]
	refusals *lru.Cache[K, refusal]

	mu      sync.Mutex // held for map operations only, never across a call
	flights map[trip[K]]*flight[V]
}

// newCache makes room for capacity answers of yes and as many of no. capacity must be positive.
func newCache[K comparable, V any](capacity int, life lifetimes) (*cache[K, V], error) {
	shards := max(1, min(maxShards, capacity/minShardEntries))
	c := &cache[K, V]{start: time.Now(), life: life, seed: maphash.MakeSeed()}
	each := (capacity + shards - 1) / shards
	for range shards {
		grants, err := lru.New[K, *grant[V]](each)
		if err != nil {
			return nil, err
		}
		refusals, err := lru.New[K, refusal](each)
		if err != nil {
			return nil, err
		}
		c.shards = append(c.shards, &shard[K, V]{grants: grants, refusals: refusals, flights: map[trip[K]]*flight[V]{}})
	}
	return c, nil
}

func (c *cache[K, V]) now() time.Duration { return time.Since(c.start) }

// moment is what now returns, as a time. Zero stays zero.
func (c *cache[K, V]) moment(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return c.start.Add(d)
}

// shard picks by a seeded hash, so that nobody can aim all their keys at one part.
func (c *cache[K, V]) shard(key K) *shard[K, V] {
	if len(c.shards) == 1 {
		return c.shards[0]
	}
	return c.shards[maphash.Comparable(c.seed, key)%uint64(len(c.shards))]
}

// find returns what is remembered and whether the caller is the one who should ask again in the background.
func (c *cache[K, V]) find(key K) (a answer[V], renew bool) {
	sh, now := c.shard(key), c.now()
	a, g := sh.look(key, now)
	return a, g != nil && now >= g.renewAt && g.claim(now)
}

// look returns what is remembered, with the grant behind an answer of granted or held.
func (sh *shard[K, V]) look(key K, now time.Duration) (answer[V], *grant[V]) {
	if g, ok := sh.grants.Get(key); ok {
		if now < g.expires {
			return answer[V]{outcome: granted, value: g.value, cached: true, expires: g.expires}, g
		}
		if until := time.Duration(g.held.Load()); now < until {
			return answer[V]{outcome: held, value: g.value, cached: true, expires: until}, g
		}
	}
	if r, ok := sh.refusals.Get(key); ok && now < r.expires {
		return answer[V]{outcome: refused, err: r.err, cached: true}, nil
	}
	return answer[V]{}, nil
}

// claim lets one of many callers through, and none within attemptPause of the last attempt.
func (g *grant[V]) claim(now time.Duration) bool {
	last := g.tried.Load()
	return now-time.Duration(last) >= attemptPause && g.tried.CompareAndSwap(last, int64(now))
}

// grant remembers a yes and returns it. Age counts from the question, not from the answer: what changed in between is not
// missed for longer than was promised. A no that was asked for later stays, and is returned instead.
func (c *cache[K, V]) grant(key K, value V, asked time.Duration) answer[V] {
	sh := c.shard(key)
	if r, ok := sh.refusals.Peek(key); ok && r.asked > asked {
		return answer[V]{outcome: refused, err: r.err}
	}
	g := &grant[V]{value: value, asked: asked, expires: asked + c.life.grant}
	// Somewhere between the last tenth and the last twentieth, so that entries made together do not come back together.
	g.renewAt = g.expires - c.life.grant/20 - rand.N(c.life.grant/20+1)
	g.tried.Store(int64(asked - attemptPause))
	if sh.grants.Add(key, g) {
		c.evictedGrants.Add(1)
	}
	sh.refusals.Remove(key)
	return answer[V]{outcome: granted, value: value, expires: g.expires}
}

// refuse remembers a no, and forgets the yes before it.
func (c *cache[K, V]) refuse(key K, err error, asked time.Duration) {
	sh := c.shard(key)
	sh.grants.Remove(key)
	if sh.refusals.Add(key, refusal{err: err, asked: asked, expires: asked + c.life.deny}) {
		c.evictedRefusals.Add(1)
	}
}

// fail notes that the cluster did not decide. If it could not be reached at all, an earlier yes is held, and returned;
// any other failure ends a hold.
func (c *cache[K, V]) fail(key K, unreachable bool) (answer[V], bool) {
	g, ok := c.shard(key).grants.Peek(key)
	if !ok {
		return answer[V]{}, false
	}
	now := c.now()
	g.tried.Store(int64(now))
	until := c.holdable(g, now)
	if !unreachable || until == 0 {
		g.held.Store(0)
		return answer[V]{}, false
	}
	g.held.Store(int64(until))
	return answer[V]{outcome: held, value: g.value, expires: until}, true
}

// stale returns the earlier yes that counts if the cluster turns out to be away.
func (c *cache[K, V]) stale(key K) (answer[V], bool) {
	g, ok := c.shard(key).grants.Peek(key)
	if !ok {
		return answer[V]{}, false
	}
	until := c.holdable(g, c.now())
	return answer[V]{outcome: held, value: g.value, expires: until}, until != 0
}

// holdable is until when g may be held from now on; zero: not at all.
func (c *cache[K, V]) holdable(g *grant[V], now time.Duration) time.Duration {
	limit := g.asked + c.life.stale
	if now >= limit {
		return 0
	}
	return min(now+holdFor, limit)
}

// forget drops everything.
func (c *cache[K, V]) forget() {
	for _, sh := range c.shards {
		sh.grants.Purge()
		sh.refusals.Purge()
	}
}

// sizes returns how many answers of yes and of no are remembered, expired ones included.
func (c *cache[K, V]) sizes() (grants, refusals int) {
	for _, sh := range c.shards {
		grants += sh.grants.Len()
		refusals += sh.refusals.Len()
	}
	return grants, refusals
}

// tally is for the metrics.
func (c *cache[K, V]) tally() *tally {
	return &tally{sizes: c.sizes, evictedGrants: &c.evictedGrants, evictedRefusals: &c.evictedRefusals}
}
