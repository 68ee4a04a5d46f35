// Command websocket-service is a page with a WebSocket and an event stream to run in a vanilla operation; see README.md.
package main

import (
	"taskproxy/examples/job"
	"taskproxy/examples/websocket-service/livepage"
)

func main() { job.Main(livepage.Serve) }
