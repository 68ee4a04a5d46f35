// Package auth says who is calling and whether they may have a service's operation.
//
// It owns three things: which one credential of a request counts (FromRequest), whom the cluster says it belongs to
// (Authorizer.Authenticate), and whether the cluster lets that login have an operation (Authorizer.Authorize). The
// cluster alone decides; this package asks it as rarely as it may and remembers what it said.
//
// It promises that
//   - nothing but an answer of the cluster is ever a yes, and a yes is never older than Config.GrantTTL, or
//     Config.StaleLimit while the cluster cannot be asked;
//   - an answer of no takes the place of a remembered yes at once, and errors are not remembered;
//   - one question is asked once however many requests wait for it, and no lock is held while it is asked;
//   - who asks too much, or fails too often, waits behind nobody but himself; what is answered from memory waits for
//     nothing, and has no part in any limit;
//   - a stream is asked about again (Recheck) however much its caller asks besides;
//   - a cluster that takes credentials that nobody has is found out (Authorizer.Run), and lets nobody in;
//   - credentials are not kept: memory holds a keyed digest of them, and no log, metric or error holds anything.
//
// It leaves to others: which service a request is for and which permissions that needs (proxy), what leaves with the
// upstream request (proxy), from which address a caller comes (proxy), and how the cluster is asked (ytclient).
//
//	presented, err := auth.FromRequest(r, "YTCypressCookie")
//	…
//	who, err := authorizer.Authenticate(r.Context(), callerAddr, presented.Credentials)
//	…
//	_, err = authorizer.Authorize(r.Context(), who.Login, service.OperationID, service.Permissions)
package auth
