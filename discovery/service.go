package discovery

import (
	"sync/atomic"
	"time"

	"taskproxy/ytclient"
)

// Protocol is what a service speaks behind its endpoints.
type Protocol string

// The protocols that an annotation can name. "websocket" is accepted there and means HTTP.
const (
	HTTP Protocol = "http"
	GRPC Protocol = "grpc" // HTTP/2 without TLS
)

// What services require; shared by all of them, so never modified.
var (
	readOnly      = []ytclient.Permission{ytclient.Read}
	readAndManage = []ytclient.Permission{ytclient.Read, ytclient.Manage}
)

// Service is what a user publishes: a named web service of one task of one operation, and the endpoints where it answers.
// Services of a Snapshot are immutable and shared by all requests; only their cursor moves.
type Service struct {
	OperationID string // canonical text form
	Task        string
	Name        string
	Protocol    Protocol

	// User started the operation; StartTime is when, by the cluster's clock.
	User      string
	StartTime time.Time
	// Alias of the operation with its leading "*"; empty when it has none.
	Alias string

	// Permissions that a caller needs on the operation, all of them. Never empty.
	Permissions []ytclient.Permission

	// Origins of other sites, scheme://host[:port] as browsers send them, whose pages may call and frame the service with
	// their visitor's login cookie. Nil: none.
	Origins []string

	// RouteTimeout is how long a job may take from having the whole request to the headers of its answer. Zero: there is no limit.
	RouteTimeout time.Duration
	// IdleTimeout is how long a stream of this service may be silent in both directions. Zero: as the proxy has it for all;
	// negative: for ever.
	IdleTimeout time.Duration
	// Affinity: a browser stays with the job that it was sent to first, by a cookie. See Handle.
	Affinity bool

	// ID is the label that the service is published under: the short ID, or LongID when the short one belongs to another
	// living service. LongID resolves always.
	ID, LongID string

	// AliasLabel is the lower-case label <alias>-<task>-<service> that the service is reached under as well; empty when its
	// operation has no alias, or when there is no such label or it belongs to another service.
	AliasLabel string

	// Endpoints where the service answers now, in a stable order. Empty while no job answers yet.
	Endpoints []Endpoint

	// Held are endpoints that take no new requests, although the cluster has not said that their jobs have ended: what goes on
	// there must not be cut. In no order. Nil as a rule.
	Held []Endpoint

	// SparkREST: this is the REST server of a standalone Spark cluster. Its publisher says so; an annotation cannot.
	SparkREST bool

	// cursor is the round-robin position. It is shared by all snapshots that this service lives through.
	cursor *atomic.Uint64
	// handles of the endpoints, by which they are found again; nil without Affinity.
	handles map[string]int
}

// Endpoint is one job's address.
type Endpoint struct {
	JobID string
	Addr  string // host:port as net.Dial takes it; IPv6 hosts are bracketed
	// Vouched grows each time that the cluster vouches for the job after a connection to it has failed. An address that failed may
	// be somebody else's: nothing may go there before this has grown.
	Vouched uint32
}

// Next returns successive numbers for the balancer, one per call; safe for concurrent use.
func (s *Service) Next() uint64 { return s.cursor.Add(1) - 1 }
