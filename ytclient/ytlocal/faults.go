package ytlocal

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.ytsaurus.tech/yt/go/yterrors"
)

// Faults makes commands misbehave, and counts calls. Safe for concurrent use.
type Faults struct {
	mu    sync.Mutex
	rules []*rule
	calls map[string]int
	cost  time.Duration
}

// Call is what a fault can be chosen by.
type Call struct {
	Command string // a command of the API, or whoami, hosts, ping, api
	User    string // empty where nobody is asked who he is
	Params  map[string]any
}

// Fault is one way to misbehave. Its parts apply in the order of the fields; those that are zero do nothing, and a fault
// that changes nothing but time lets the call go on.
type Fault struct {
	Command string          // empty: every command
	Match   func(Call) bool // nil: every call
	Times   int             // how many calls it hits; 0: until it is removed

	Delay time.Duration // wait first, or until the client leaves
	Hang  bool          // never answer; the connection stays open until the client or the cluster closes it

	// Cut breaks the connection: before an answer, after its headers, or in the middle of the body.
	Cut Cut
	// Error is answered as the cluster answers errors of commands. Status overrides its status.
	Error *yterrors.Error
	// Status, Header and Body replace the whole answer if any of them is set; a zero Status means 200.
	Status int
	Header http.Header
	Body   *string
	// Edit changes the value of a command before it is written: a state that is reviving, a job list with errors.
	Edit func(value any) any
}

// Cut says where a connection breaks.
type Cut int

// Where a connection can break.
const (
	NoCut      Cut = iota
	CutBefore      // nothing is answered
	CutHeaders     // the headers promise a body that does not come
	CutBody        // half of the body comes
)

type rule struct {
	Fault
	left int
}

// Add installs a fault; the newest that fits a call hits it. The result removes it again, and may be called twice.
func (f *Faults) Add(fault Fault) (remove func()) {
	r := &rule{Fault: fault, left: fault.Times}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rules = slices.DeleteFunc(f.rules, func(other *rule) bool { return other == r })
	}
}

// Clear removes all faults.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Calls counts, by name, the calls that have arrived so far with good credentials; commands inside a batch count as well.
func (f *Faults) Calls() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}

// SetCost makes every call take that long, in addition to what it takes anyway and to delays of faults; 0, as at first, is
// for free. A batch costs what a call does and, for each request in it, the same divided by the batch's concurrency: as if a
// cluster that needs this long for anything worked off that many requests at once.
func (f *Faults) SetCost(perCall time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cost = perCall
}

// charge waits for what a number of calls cost that run so many at once. It fails when the client has left.
func (f *Faults) charge(ctx context.Context, calls, concurrency int) error {
	f.mu.Lock()
	cost := f.cost
	f.mu.Unlock()
	return sleep(ctx, cost*time.Duration(calls)/time.Duration(concurrency))
}

// wait spends what a call costs, and the time that its fault adds. It fails when the client has left.
func (f *Faults) wait(ctx context.Context, fault *Fault) error {
	if err := f.charge(ctx, 1, 1); err != nil {
		return err
	}
	return fault.wait(ctx)
}

// take counts a call and finds its fault; nil without one.
func (f *Faults) take(call Call) *Fault {
	f.mu.Lock()
	f.calls[call.Command]++
	rules := slices.Clone(f.rules)
	f.mu.Unlock()
	for _, r := range slices.Backward(rules) {
		// Match is a test's code: it may call us, so it runs without the lock.
		if r.Command != "" && r.Command != call.Command || r.Match != nil && !r.Match(call) {
			continue
		}
		if f.spend(r) {
			return &r.Fault
		}
	}
	return nil
}

// spend uses up one of the calls that a rule hits.
func (f *Faults) spend(r *rule) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Times == 0 {
		return true
	}
	if r.left == 0 {
		return false
	}
	r.left--
	return true
}

// wait is the part of a fault that takes time. It fails when the client has left.
func (f *Fault) wait(ctx context.Context) error {
	if f == nil {
		return nil
	}
	if f.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return sleep(ctx, f.Delay)
}

// sleep waits, or until the client leaves; then it fails.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer writes what the fault says instead of the command's answer, and reports whether it did.
func (f *Fault) answer(w http.ResponseWriter) bool {
	if f == nil {
		return false
	}
	switch f.Cut {
	case CutBefore:
		panic(http.ErrAbortHandler)
	case CutHeaders:
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), f.Header)
	switch {
	case f.Error != nil && f.Status != 0:
		writeError(w, &statusError{status: f.Status, err: f.Error})
	case f.Error != nil:
		writeError(w, f.Error)
	case f.Body != nil:
		w.WriteHeader(cmp.Or(f.Status, http.StatusOK))
		_, _ = w.Write([]byte(*f.Body))
	case f.Status != 0:
		w.WriteHeader(f.Status)
	default:
		return false
	}
	return true
}

// edit changes the value of a command.
func (f *Fault) edit(value any) any {
	if f == nil || f.Edit == nil {
		return value
	}
	return f.Edit(value)
}
