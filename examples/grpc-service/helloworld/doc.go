// Package helloworld holds the generated code of helloworld.proto. After a change of the proto file, run
//
//	go generate ./examples/grpc-service/helloworld
//
// which needs python3 and the network: it fetches pinned tools into a temporary directory and leaves go.mod alone.
package helloworld

import _ "embed" // for Proto

// Proto is the text of helloworld.proto, for programs that hand it to a client such as grpcurl.
//
//go:embed helloworld.proto
var Proto string

//go:generate sh generate.sh
