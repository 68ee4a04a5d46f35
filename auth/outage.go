package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"taskproxy/ytclient"
)

// patience is how long a request with an expired yes waits for the cluster's answer while the cluster is known to be away.
//
// It counts only then. A call that is merely slow has to end first: otherwise whoever slows the cluster down, or keeps
// our robot at its limit, would be let in by rights that were taken away from them. So an outage costs the first request
// that meets it a call's timeout, and others this much at most; and what can be gained by making the cluster fail, not just
// slow, is the time for which a yes counts without it: Config.StaleLimit from when the cluster last said it.
const patience = 250 * time.Millisecond

// outage knows whether the cluster can be reached: what the last call that ended has to say about it. It is safe for
// concurrent use, and costs those nothing who find their answer in memory.
type outage struct {
	mu    sync.Mutex
	away  bool
	began chan struct{} // closed while away
}

func newOutage() *outage { return &outage{began: make(chan struct{})} }

// note is told how a call ended.
func (o *outage) note(unreachable bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case unreachable && !o.away:
		close(o.began)
	case !unreachable && o.away:
		o.began = make(chan struct{})
	}
	o.away = unreachable
}

// start returns a channel that is closed when the cluster is found to be away, or already if it is.
func (o *outage) start() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.began
}

// isAway reports whether the last call could not reach the cluster.
func (o *outage) isAway() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.away
}

// IsAway reports whether err, of this package, says that the cluster was asked and could not be reached. That is so for one
// kind of ErrUnavailable; the others are a cluster that limits us, one that answers what is no answer, and one that was not
// asked.
func IsAway(err error) bool { return isUnreachable(err) && !errors.Is(err, errNotAsked) }

// isUnreachable reports whether err says that the cluster could not be asked, which is when an earlier yes counts. A
// cluster that limits our robot is there and must be asked again; otherwise whoever makes it busy makes revocations wait.
// One that gives an answer which is none (an empty one, say) is there as well, and has not said yes.
func isUnreachable(err error) bool {
	return (errors.Is(err, ytclient.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) &&
		!errors.Is(err, ytclient.ErrOverloaded) && !errors.Is(err, ytclient.ErrOddAnswer)
}
