// Command inference-service is an inference server to run in a vanilla operation; see README.md.
package main

import (
	"taskproxy/examples/inference-service/completions"
	"taskproxy/examples/job"
)

func main() { job.Main(completions.Serve) }
