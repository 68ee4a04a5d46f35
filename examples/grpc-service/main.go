// Command grpc-service is a gRPC service to run in a vanilla operation; see README.md.
package main

import (
	"taskproxy/examples/grpc-service/greeter"
	"taskproxy/examples/job"
)

func main() { job.Main(greeter.Serve) }
