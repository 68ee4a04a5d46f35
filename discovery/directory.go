package discovery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"taskproxy/ytclient"
)

// The processes of a standalone Spark cluster leave their addresses in Cypress: in a directory that the operation's
// annotations name there is one directory for each kind of process, and the only child of that is named host:port. Next to
// them, operation has a child named by the operation.

// directoriesBatch is how many directories are listed in one call.
const directoriesBatch = 100

// entries are the answers about discovery directories in one pass, by path.
type entries map[string]ytclient.ChildrenAnswer

// directories are what is read for the operation's written addresses.
func (t *tracked) directories() (paths []string) {
	for _, decl := range t.declarations {
		if w := decl.written; w.directory != "" {
			paths = append(paths, w.directory+"/operation", w.directory+"/"+w.entry)
		}
	}
	return paths
}

// readDirectories lists the discovery directories of the operations that have one. Those that there was no time for are not
// among the entries.
func (d *Discovery) readDirectories(ctx context.Context, ops []*tracked) entries {
	var shared, suspect []string
	all := make(entries)
	now := time.Now()
	for _, t := range ops {
		for _, path := range t.directories() {
			switch {
			case !t.addresses.unread:
				shared = append(shared, path)
			case d.silent.has(path, now):
				all[path] = ytclient.ChildrenAnswer{Err: errSilent}
			default:
				suspect = append(suspect, path)
			}
		}
	}
	slices.Sort(shared)
	batches := slices.Collect(slices.Chunk(slices.Compact(shared), directoriesBatch))
	// One directory that hangs makes its whole call fail. What could not be read the last time is asked for one by one, so
	// that others fail with it once and no more.
	slices.Sort(suspect)
	suspect = slices.Compact(suspect)
	rand.Shuffle(len(suspect), func(i, j int) { suspect[i], suspect[j] = suspect[j], suspect[i] })
	batches = slices.AppendSeq(batches, slices.Chunk(suspect, 1))
	answered := make([][]ytclient.ChildrenAnswer, len(batches))
	d.forEachIndex(ctx, len(batches), func(i int) {
		err := d.call(ctx, func(ctx context.Context) (err error) {
			answered[i], err = d.source.ListChildren(ctx, batches[i])
			if err == nil && len(answered[i]) != len(batches[i]) {
				err = fmt.Errorf("%w: %d answers for %d directories", ytclient.ErrUnavailable, len(answered[i]), len(batches[i]))
			}
			return err
		})
		if ctx.Err() != nil {
			answered[i] = nil
			return
		}
		if len(batches[i]) == 1 {
			d.silent.note(batches[i][0], err)
		}
		if err != nil {
			answered[i] = slices.Repeat([]ytclient.ChildrenAnswer{{Err: err}}, len(batches[i]))
		}
	})
	for i, batch := range batches {
		for k := range answered[i] {
			all[batch[k]] = answered[i][k]
		}
	}
	return all
}

// has reports whether all of the paths were asked for.
func (e entries) has(paths []string) bool {
	return !slices.ContainsFunc(paths, func(path string) bool { _, ok := e[path]; return !ok })
}

// read is what is written in a place.
type read struct {
	at   hostPort
	text string // empty: nothing is there yet
	err  error  // the place cannot be read: what was known is kept
	bad  string // why what is there is no address of the operation, as the rest of a sentence
}

// only is the one child of a directory. What it is called was read with the robot's rights, so nobody is told.
func (e entries) only(path string) (name, id string, r read) {
	a := e[path]
	switch {
	case errors.Is(a.Err, ytclient.ErrNotFound), a.Err == nil && len(a.Names) == 0:
		return "", "", read{}
	case a.Err != nil:
		return "", "", read{err: a.Err}
	case len(a.Names) > 1:
		return "", "", read{bad: "has more than one child"}
	}
	if len(a.IDs) == 1 {
		id = a.IDs[0]
	}
	return a.Names[0], id, read{}
}

// read finds what a place holds for the operation. SPYT never removes an entry, so most of them are about operations that
// have ended: those of a directory count only if it says itself that it is this operation's.
func (e entries) read(t *tracked, p place) (r read, foreign bool) {
	if p.directory == "" {
		return read{at: p.at, text: p.at.String()}, false
	}
	operation, _, r := e.only(p.directory + "/operation")
	switch {
	case r.bad != "":
		r.bad = "discovery/operation " + r.bad
		return r, false
	case operation == "":
		return r, false
	case operation != t.op.ID:
		return read{}, true
	}
	name, id, r := e.only(p.directory + "/" + p.entry)
	switch {
	case r.bad != "":
		r.bad = "discovery/" + p.entry + " " + r.bad
	case name != "":
		var ok bool
		if r.at, ok = parseHostPort(name); !ok {
			r.bad = "discovery/" + p.entry + " has a child that is no host:port"
			break
		}
		r.text = name + " " + id // a node that was made anew is written anew
	}
	return r, false
}
