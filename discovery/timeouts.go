package discovery

import (
	"fmt"
	"time"

	"taskproxy/ytclient"
)

// The keys by which an annotation sets timeouts, in seconds. The Envoy-based task proxy has the same ones, for a whole operation.
const (
	routeTimeoutKey = "route_timeout_seconds"
	idleTimeoutKey  = "stream_idle_timeout_seconds"
)

// An author's timeout is between these. A shorter one would round to nothing, which means the opposite; a longer one is a
// mistake, or a long way to write 0.
const (
	minTimeout = time.Millisecond
	maxTimeout = 365 * 24 * time.Hour
)

// timeouts reads both into d, which has what counts where nothing is said. What is wrong changes nothing.
func (r *reading) timeouts(fields map[string]any, task, service, where string, d *declaration) {
	if v := at(fields, routeTimeoutKey); v != nil {
		if limit, ok := r.seconds(v, task, service, where+routeTimeoutKey); ok {
			d.routeTimeout = limit
		}
	}
	if v := at(fields, idleTimeoutKey); v != nil {
		if limit, ok := r.seconds(v, task, service, where+idleTimeoutKey); ok {
			d.idleTimeout = limit
			if limit == 0 {
				d.idleTimeout = -1 // zero stands for the proxy's own
			}
		}
	}
}

// seconds reads a time of zero or more. Any number that YSON can have will do.
func (r *reading) seconds(v any, task, service, where string) (time.Duration, bool) {
	n, isNumber := v.(float64)
	if !isNumber {
		var i int64
		i, isNumber = ytclient.Integer(v)
		n = float64(i)
	}
	// Compared as numbers: a duration could overflow. No comparison holds for NaN.
	if isNumber && (n == 0 || n >= minTimeout.Seconds() && n <= maxTimeout.Seconds()) {
		return time.Duration(n * float64(time.Second)), true
	}
	r.problem(BadAnnotation, task, service, where+" is "+describe(v)+fmt.Sprintf(
		"; it must be a number of seconds from %v to %.0f, or 0 for no limit; it is ignored", minTimeout.Seconds(), maxTimeout.Seconds()))
	return 0, false
}
