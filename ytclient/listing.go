package ytclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.ytsaurus.tech/yt/go/yson"
	"go.ytsaurus.tech/yt/go/yterrors"
)

// The two listings are read by a GET of our own. The SDK decodes a whole page into its types: it panics when one item of
// somebody's has an odd shape, and it drops the errors that list_jobs reports and most of brief_progress.

// pageSize is the most that list_operations gives at once.
const pageSize = 1000

// maxPages ends a listing that does not.
const maxPages = 100

var operationAttributes = []string{
	"id", "state", "authenticated_user", "start_time", "brief_spec", "runtime_parameters", "brief_progress",
}

// ListOperations lists all running operations, page by page. An item that cannot be read, or is too long, is in Listing.Odd
// and harms no other. When any page fails the whole listing does: nothing can be concluded from a part of it. While some
// items are too long for pages, those between them are asked for one by one; what was known of them before may then be told
// again for a few listings (see maxAgain), but for State and BriefProgress, which are always new.
//
// Errors: ErrOverloaded, ErrUnavailable, ErrDenied, ErrUnauthenticated.
func (c *Client) ListOperations(ctx context.Context) (Listing, error) {
	g := newGathered(ctx, c.bounds, c.singles.Load())
	if g.anyLong() {
		return c.listByName(ctx, g, pageSize)
	}
	var cursor time.Time
	for page := 0; page < maxPages; page++ {
		p, err := c.operationsPage(ctx, cursor, pageSize, operationAttributes)
		if err != nil {
			return Listing{}, err
		}
		g.take(p)
		switch {
		case p.cut:
			return c.listByName(ctx, g, g.nextLimit(p, pageSize))
		case !p.incomplete:
			c.singles.Store(&singles{})
			return g.listing, nil
		}
		if cursor, err = p.after(cursor); err != nil {
			return Listing{}, err
		}
	}
	return Listing{}, errManyPages
}

var errManyPages = fmt.Errorf("list_operations: %w: it still has more after %d pages", ErrUnavailable, maxPages)

type operationsPage struct {
	items      []listedItem
	incomplete bool
	cut        bool // it is longer than we read; what is here is its beginning
	light      bool // it is short enough that a few times as much would do
}

// listedItem is one item of which what the cluster itself writes is decoded, and what its author wrote is not yet.
type listedItem struct {
	Operation // ID, StartTime, State, User; what could be read of them if there is an error

	err    error
	fields map[string]yson.RawValue
	size   int // bytes
}

// operationsPage asks for the newest operations that started before the cursor; a zero one is now.
func (c *Client) operationsPage(ctx context.Context, cursor time.Time, limit int, attributes []string) (page operationsPage, err error) {
	params := map[string]any{"state": "running", "limit": limit, "attributes": attributes, "include_counters": false}
	if !cursor.IsZero() {
		params["cursor_time"] = stamp(cursor)
		params["cursor_direction"] = "past"
	}
	var items []yson.RawValue
	err = c.do(ctx, "list_operations", func(ctx context.Context) error {
		body, cut, err := c.getBody(ctx, "list_operations", params, c.bounds.answer)
		if err != nil {
			return err
		}
		if page.light = len(body) < c.bounds.answer/4; cut {
			page.cut, items = true, splitStart(body, "operations")
			return nil
		}
		answer, err := answerMap(body)
		if err != nil {
			return err
		}
		if items, err = field[[]yson.RawValue](answer, "operations"); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// Without this field nobody knows whether the listing is whole.
		if page.incomplete, err = field[bool](answer, "incomplete"); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil
	})
	for _, raw := range items {
		page.items = append(page.items, identify(raw))
	}
	return page, err
}

// after is the cursor of the page that follows. The cluster's cursor excludes its own instant: one microsecond later the
// operations of the page's last instant are read again, and those of the same instant that did not fit are not lost.
func (p operationsPage) after(cursor time.Time) (time.Time, error) {
	var oldest time.Time
	for _, o := range p.items {
		if !o.StartTime.IsZero() {
			oldest = o.StartTime
		}
	}
	next := oldest.Add(time.Microsecond)
	switch {
	case oldest.IsZero():
		return next, fmt.Errorf("list_operations: %w: it says that there is more, but the page has no start_time to go on from", ErrUnavailable)
	case !cursor.IsZero() && !next.Before(cursor):
		return next, fmt.Errorf("list_operations: %w: more than %d operations started at %s", ErrUnavailable, pageSize, stamp(oldest))
	}
	return next, nil
}

// identify reads of one item what the cluster itself writes.
func identify(raw yson.RawValue) (o listedItem) {
	o.size = len(raw)
	if err := item(raw, &o.fields); err != nil {
		o.err = fmt.Errorf("it is no map: %w", err)
		return o
	}
	return identifyFields(o)
}

// identifyFields does so for one that is taken apart.
func identifyFields(o listedItem) listedItem {
	id, err := field[string](o.fields, "id")
	if err == nil {
		id, err = reprint(id)
	}
	if err != nil {
		o.err = err
		return o
	}
	var errs [3]error
	o.ID = id
	o.StartTime, errs[0] = timeField(o.fields, "start_time")
	o.State, errs[1] = field[string](o.fields, "state")
	o.User, errs[2] = field[string](o.fields, "authenticated_user")
	o.err = errors.Join(errs[:]...)
	return o
}

// decode reads the rest.
func (i listedItem) decode() (Operation, error) {
	o, errs := i.Operation, [3]error{i.err}
	o.Alias, errs[1] = decodeAlias(i.fields)
	o.Annotations, errs[2] = decodeAnnotations(i.fields)
	o.AnnotationsSum = SumAnnotations(o.Annotations)
	o.BriefProgress = string(i.fields["brief_progress"])
	return o, errors.Join(errs[:]...)
}

func decodeAlias(operation map[string]yson.RawValue) (string, error) {
	brief, err := optional[map[string]yson.RawValue](operation, "brief_spec")
	if err != nil {
		return "", err
	}
	return optional[string](brief, "alias")
}

func decodeAnnotations(operation map[string]yson.RawValue) (map[string]any, error) {
	runtime, err := optional[map[string]yson.RawValue](operation, "runtime_parameters")
	if err != nil {
		return nil, err
	}
	v, err := optional[any](runtime, "annotations")
	if err != nil {
		return nil, err
	}
	switch v := Plain(v).(type) {
	case nil:
		return nil, nil
	case map[string]any:
		return v, nil
	default:
		return nil, fmt.Errorf("%q is no map", "annotations")
	}
}

// get makes one GET of a command whose answer is a map, and returns the map undecoded. errLongAnswer: it is longer than that
// many bytes.
func (c *Client) get(ctx context.Context, command string, params map[string]any, most int) (map[string]yson.RawValue, error) {
	body, cut, err := c.getBody(ctx, command, params, most)
	switch {
	case err != nil:
		return nil, err
	case cut:
		return nil, fmt.Errorf("%w of %d bytes", errLongAnswer, most)
	}
	return answerMap(body)
}

var errLongAnswer = fmt.Errorf("%w: its answer is longer than the limit", ErrUnavailable)

func answerMap(body []byte) (answer map[string]yson.RawValue, err error) {
	if err := item(body, &answer); err != nil {
		return nil, fmt.Errorf("%w: its answer is no YSON map: %w", ErrUnavailable, err)
	}
	return answer, nil
}

// getBody makes one GET of a command and returns the body of its answer; cut: its first bytes, of which it has more than most.
func (c *Client) getBody(ctx context.Context, command string, params map[string]any, most int) (body []byte, cut bool, err error) {
	body, cut, err = c.getBodyOnce(ctx, command, params, most)
	if err != nil && brokenConnection(err) && ctx.Err() == nil {
		body, cut, err = c.getBodyOnce(ctx, command, params, most) // as in CheckOperationPermission
	}
	return body, cut, err
}

func (c *Client) getBodyOnce(ctx context.Context, command string, params map[string]any, most int) (body []byte, cut bool, err error) {
	header, err := yson.MarshalFormat(params, yson.FormatText)
	if err != nil {
		return nil, false, err
	}
	token, err := c.token()
	if err != nil {
		return nil, false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/api/v4/"+command, nil)
	if err != nil {
		return nil, false, err
	}
	wireCredentials{Credentials{Kind: OAuth, Secret: token}}.Set(req)
	req.Header.Set("X-Yt-Header-Format", "<format=text>yson")
	req.Header.Set("X-Yt-Output-Format", "<format=text>yson")
	req.Header.Set("X-Yt-Parameters", string(header))
	req.Header.Set("User-Agent", "task-proxy")
	resp, err := c.hc.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	if err := answerError(resp); err != nil {
		return nil, false, err
	}
	var b bytes.Buffer
	// A buffer that grows as it goes is in memory twice each time.
	b.Grow(int(min(max(0, resp.ContentLength), int64(most))) + 2*bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(resp.Body, int64(most)+1)); err != nil {
		return nil, false, err
	}
	return b.Bytes()[:min(b.Len(), most)], b.Len() > most, nil
}

// answerError is the error that an answer carries: in a header at any status, or in the body of one that is not 2xx.
func answerError(resp *http.Response) error {
	if h := resp.Header.Get("X-Yt-Error"); h != "" {
		var e yterrors.Error
		if err := json.Unmarshal([]byte(h), &e); err != nil {
			return fmt.Errorf("%w: its X-YT-Error header is malformed: %w", ErrUnavailable, err)
		}
		return &e
	}
	if resp.StatusCode/100 == 2 {
		return nil
	}
	const enough = 64 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	if err != nil {
		return err
	}
	var e yterrors.Error
	if json.Unmarshal(body, &e) == nil && e.Code != 0 {
		return &e
	}
	return &yterrors.HTTPError{StatusCode: resp.StatusCode, Err: fmt.Errorf("%.256q", bytes.TrimSpace(body))}
}
