// Package interop holds end-to-end tests and nothing else: suites and clients that we did not write, through the whole
// product, as a process, to jobs of a local cluster. `make e2e` installs what they need and runs them.
//
//   - grpc_test.go: the gRPC project's own interoperability client and server.
//   - h2spec_test.go: h2spec against the public listener; h2spec_failures.txt explains what fails, which must be what fails
//     against net/http alone.
//   - autobahn_test.go: the Autobahn suite for WebSockets, where there is a Python 2.7 for it.
//   - websocket_test.go: conversations of two Python libraries, and with frames made by hand, the same as without the proxy.
//   - curl_test.go: curl's ways to send and to fetch, and what large bodies cost the proxy.
//   - bodies_test.go: bodies of 5 GiB, and bodies that are broken off, in constant memory.
//   - tunnels_test.go: what 10,000 idle WebSockets cost the proxy's process.
//   - apps_test.go: Jupyter, Streamlit, Spark and others' pages in a real browser; `make e2e-apps`, on its own.
package interop
