package discovery

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
)

// patience is how many cycles in a row are spent on an address that is not there yet; then it waits for the next regular
// list of the operation's jobs.
const patience = 30

// addresses is what cycles know about the addresses that an operation's author wrote.
type addresses struct {
	generation int  // grows whenever the annotations change
	due        bool // the jobs were listed since the last look
	partial    bool // … but not in full
	renewed    bool // … and there are new ones
	unread     bool // its discovery directory could not be read at the last look
	claims     map[string]*claim
	trouble    []Problem // of the last look
}

// claim is one service's written address, and whether it is an endpoint. It begins when the address is first seen and is
// good for the jobs that ran then: an address that stays when its job ends says nothing about the next job, and its port may
// be somebody else's by now.
type claim struct {
	key  string   // of the service
	text string   // what was written; another text is another claim
	at   hostPort // zero while nothing is written

	generation int                 // the operation's when the claim was last known to be meant
	jobs       map[string]struct{} // that it can be of: those that ran when it was first seen. nil: that is not known yet

	// Of an admitted claim. What was looked up then is what is dialled from then on.
	job   string // its id; empty: not admitted
	node  string // Job.Address
	addr  netip.AddrPort
	given bool // the node gave the port to the job

	waiting bool        // worth another look in the next cycle …
	tries   int         // … of which there were so many
	kind    ProblemKind // why it is no endpoint; empty: nothing to tell
	reason  string
}

// refuse says no on the strength of what was answered; it is looked at again when the jobs are next listed.
func (c *claim) refuse(reason string) {
	c.job, c.waiting, c.kind, c.reason = "", false, RejectedAddress, reason
}

// wait leaves the decision open; one that was taken stands.
func (c *claim) wait(kind ProblemKind, reason string) {
	c.waiting, c.kind, c.reason = true, kind, reason
}

// unknown is what an exec node says that does not know the job. The job may be about to begin or to end, so it is believed
// the second time.
func (c *claim) unknown() {
	if c.wait("", ""); c.tries > 1 {
		c.job = ""
	}
	if c.tries >= unknownJobLimit {
		c.wait(ClusterCall, "the exec node does not know the operation's job")
	}
}

// admit makes the claim an endpoint of a job; it cannot become one of another job any more.
func (c *claim) admit(j *job, addr netip.AddrPort, given bool) {
	c.job, c.node, c.addr, c.given = j.ID, j.Address, addr, given
	c.jobs = map[string]struct{}{j.ID: {}}
	c.waiting, c.tries, c.kind, c.reason = false, 0, "", ""
	j.claimed = true
}

// means reports whether the claim can be one to an address of the job.
func (c *claim) means(j *job) bool {
	_, ok := c.jobs[j.ID]
	return ok || c.jobs == nil
}

// living is the job of an admitted claim; nil when it does not run any more, or the claim is not admitted.
func (c *claim) living(t *tracked) *job {
	if c.job == "" {
		return nil
	}
	if j := t.jobs[c.job]; j != nil && j.Address == c.node {
		return j
	}
	return nil
}

// writtenEndpoint is where a service with a written address answers, or, if its job has expired, may still answer.
func (t *tracked) writtenEndpoint(d declaration) (endpoints, held []Endpoint) {
	c := t.addresses.claims[serviceKey(d)]
	if c == nil || c.job == "" {
		return nil, nil
	}
	if j := c.living(t); j != nil {
		return []Endpoint{{JobID: c.job, Addr: c.addr.String(), Vouched: j.vouched}}, nil
	}
	if j := t.expired[c.job]; j != nil && j.Address == c.node {
		return nil, []Endpoint{{JobID: c.job, Addr: c.addr.String(), Vouched: j.vouched}}
	}
	return nil, nil
}

func serviceKey(d declaration) string { return d.task + "\x00" + d.name }

// addressesOpen reports whether another look in the next cycle may bring an endpoint.
func (t *tracked) addressesOpen() bool {
	for _, d := range t.declarations {
		if d.written.isZero() {
			continue
		}
		c := t.addresses.claims[serviceKey(d)]
		if c == nil {
			return true
		}
		// A process writes to its directory when it has come up: what its predecessor left there is soon another address.
		open := c.waiting || d.written.directory != "" && c.job == ""
		if open && c.tries < patience {
			return true
		}
	}
	return false
}

// listed notes that the operation's jobs were just listed: then its written addresses are looked at, too.
func (w *addresses) listed(partial, renewed bool) {
	w.due, w.partial, w.renewed = true, partial, w.renewed || renewed
}

// askAddresses makes endpoints of the addresses that authors wrote, as far as the guard lets them. Directories are read until
// slow ends; those that there was no time for are read the next time.
func (d *Discovery) askAddresses(ctx, slow context.Context, ops []*tracked) bool {
	var due []*tracked
	for _, t := range ops {
		if !t.addresses.due {
			continue
		}
		if slices.ContainsFunc(t.declarations, func(d declaration) bool { return !d.written.isZero() }) {
			due = append(due, t)
		} else {
			t.addresses = addresses{generation: t.addresses.generation}
		}
	}
	if len(due) == 0 {
		return false
	}
	entries := d.readDirectories(slow, due)
	if ctx.Err() != nil {
		return false
	}
	var trials []*trial
	for _, t := range due {
		if !entries.has(t.directories()) {
			continue
		}
		trials = append(trials, t.review(entries)...)
	}
	names := d.lookUp(ctx, trials)
	for _, tr := range trials {
		if tr.matched == nil {
			tr.match(names)
		}
	}
	siblings := d.siblings(trials)
	answers := d.askTheirNodes(ctx, siblings)
	if ctx.Err() == nil {
		d.decide(trials, siblings, answers)
	}
	return true
}

// review brings the operation's claims up to date with what is written now, and returns those to be decided.
func (t *tracked) review(e entries) (trials []*trial) {
	w := &t.addresses
	before := w.claims
	w.claims, w.trouble = make(map[string]*claim, len(before)), nil
	var unread error
	foreign := false
	for _, d := range t.declarations {
		if d.written.isZero() {
			continue
		}
		key := serviceKey(d)
		r, ofAnother := e.read(t, d.written)
		foreign = foreign || ofAnother
		if r.err != nil {
			unread = r.err
		}
		c := t.succeed(before[key], d, r)
		w.claims[key] = c
		if w.renewed {
			c.tries = 0
		}
		c.tries++
		if tr := t.try(c, d, r); tr != nil {
			trials = append(trials, tr)
		}
	}
	if unread != nil {
		w.trouble = append(w.trouble, Problem{Kind: ClusterCall, Reason: "its discovery directory cannot be read, what was known is kept: " + cause(unread)})
	}
	if foreign {
		w.trouble = append(w.trouble, Problem{Kind: RejectedAddress, Reason: "its discovery directory says that it is another operation's"})
	}
	w.due, w.renewed, w.unread = false, false, unread != nil
	return trials
}

// succeed is the claim to what is written now: the one that there was, if that is the same, or a new one.
func (t *tracked) succeed(was *claim, d declaration, r read) *claim {
	fresh := &claim{key: serviceKey(d), text: r.text, at: r.at, generation: t.addresses.generation, waiting: true}
	switch {
	case was == nil:
		return fresh
	case r.err != nil:
		was.waiting = true
		return was
	case r.text == "":
		fresh.tries = was.tries
		return fresh
	case was.text != r.text:
		return fresh
	case was.living(t) != nil:
		was.generation = t.addresses.generation
		return was
	case d.written.directory == "" && was.generation != t.addresses.generation:
		// The author wrote something since the claim's job was last seen, and with it this address again.
		return fresh
	case was.job != "":
		was.refuse(lateJob)
	}
	return was
}

// try makes the trial of a claim; nil when there is nothing to decide.
func (t *tracked) try(c *claim, d declaration, r read) *trial {
	switch {
	case r.bad != "":
		c.refuse(r.bad)
		return nil
	case r.err != nil || r.text == "":
		return nil
	}
	tr := &trial{t: t, c: c}
	if j := c.living(t); j != nil {
		if c.given {
			return nil // for as long as the job lives
		}
		// A process can give its port up while its job goes on, and the node can give it to another job then.
		tr.matched, tr.ip = []*job{j}, c.addr.Addr()
		return tr
	}
	for _, j := range t.jobs {
		if d.written.task == "" || d.written.task == j.Task {
			tr.candidates = append(tr.candidates, j)
		}
	}
	if len(tr.candidates) == 0 {
		c.wait("", "")
		return nil
	}
	rank := func(j *job) int {
		if j.Task == d.task {
			return 0
		}
		return 1
	}
	slices.SortFunc(tr.candidates, func(a, b *job) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.ID, b.ID))
	})
	if c.jobs == nil && !t.addresses.partial {
		c.jobs = make(map[string]struct{}, len(tr.candidates))
		for _, j := range tr.candidates {
			c.jobs[j.ID] = struct{}{}
		}
	}
	return tr
}

// addressProblems tells why written addresses are no endpoints.
func (t *tracked) addressProblems() []Problem {
	problems := slices.Clone(t.addresses.trouble)
	for _, d := range t.declarations {
		c := t.addresses.claims[serviceKey(d)]
		if d.written.isZero() || c == nil || c.reason == "" {
			continue
		}
		reason := "its address"
		if d.written.directory == "" {
			reason += " " + quote(d.written.at.String())
		}
		if c.living(t) == nil {
			reason += " is not used: " + c.reason
		} else {
			reason += " is used as it was, but: " + c.reason
		}
		problems = append(problems, Problem{Kind: c.kind, Task: d.task, Service: d.name, Reason: reason})
	}
	for i := range problems {
		problems[i].OperationID = t.op.ID
	}
	return problems
}
