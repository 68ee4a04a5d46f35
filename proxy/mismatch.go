package proxy

import (
	"fmt"
	"net/http"

	"taskproxy/discovery"
)

// A service is declared http or grpc, and is called as it is declared: in HTTP/1.1 or in HTTP/2. What its caller and its job
// really speak may be something else, most often because the annotation does not say grpc. All of that is tried, since some of
// it works: a job may serve plain HTTP in HTTP/2, or gRPC in HTTP/1.1. Where it does not, the answer says what to declare. It
// repeats nothing of what the job sent.

const (
	declareGRPC = `a gRPC server needs protocol="grpc" in its operation's tasks_info`
	declareHTTP = `a web server needs protocol="http" in its operation's tasks_info`
)

// mismatch is an answer of the job's that its caller cannot read; nil: there is no such thing to say about it.
func mismatch(x *exchange, res *http.Response) error {
	switch answers := isGRPC(res.Header); {
	case x.service.Protocol == discovery.GRPC && answers && !x.grpc:
		return fail(causeMismatch, "service %s is declared grpc, and its job answers in gRPC: call it with a gRPC client; %s",
			quoted(x.service.Name), declareHTTP)
	case x.service.Protocol == discovery.HTTP && x.grpc && !answers && x.in.ProtoMajor >= 2 && !isGRPCWeb(x.in.Header):
		return fail(causeMismatch, "the job does not answer in gRPC, but with HTTP status %d; service %s is declared http: %s",
			res.StatusCode, quoted(x.service.Name), declareGRPC)
	}
	return nil
}

// mistaken is what to say when the exchange with a job broke that spoke, at first, as it did; empty: nothing in particular.
func mistaken(x *exchange, spoke uint32) string {
	declared := fmt.Sprintf("service %s is declared %s", quoted(x.service.Name), x.service.Protocol)
	switch grpc := x.service.Protocol == discovery.GRPC; {
	case !grpc && spoke == spokeHTTP2:
		return "the job speaks HTTP/2 alone, as gRPC servers do, but " + declared + ": " + declareGRPC
	case !grpc && x.grpc:
		return "the job did not answer a gRPC call; " + declared + ": " + declareGRPC
	case grpc && spoke == spokeOther:
		return "the job does not speak HTTP/2, as gRPC servers do, but " + declared + ": " + declareHTTP
	case grpc && !x.grpc:
		return "the job did not answer a call that is none of gRPC's; " + declared + ": " + declareHTTP
	}
	return ""
}
