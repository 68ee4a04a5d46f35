// Command http-service is an HTTP service to run in a vanilla operation; see README.md.
package main

import (
	"taskproxy/examples/http-service/httpservice"
	"taskproxy/examples/job"
)

func main() { job.Main(httpservice.Serve) }
