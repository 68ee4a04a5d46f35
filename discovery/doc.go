// Package discovery finds the web services of a cluster's running operations and keeps an immutable Snapshot of them.
package discovery
