// Command bench measures the task proxy beside other proxies: the same load, the same backends, the same run. See README.md.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
)

// commands are what the executable can be. All but run are what run starts: as the job, as the server that answers other
// proxies' questions about callers, as the cluster of swaps, and as the load that neither wrk nor h2load makes.
var commands = map[string]func(args []string) error{
	"backend":    backend,
	"authz":      authz,
	"rate":       rate,
	"ws":         webSockets,
	"hold":       hold,
	"grpc-check": grpcCheck,
	"crowd":      crowdProcess,
	"run":        run,
}

func main() {
	log.SetFlags(log.Ltime)
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: bench %s [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		log.Fatalf("%s: %v", os.Args[1], err)
	}
}

// flags is a flag set of one command.
func flags(name string) *flag.FlagSet { return flag.NewFlagSet("bench "+name, flag.ExitOnError) }

// copyOut reads r to its end and throws it away.
func copyOut(r io.Reader) { _, _ = io.Copy(io.Discard, r) }
