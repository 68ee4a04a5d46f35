// Package ytclient is the only importer of the YTsaurus SDK. It asks a cluster the few questions that a task proxy has,
// answers in the project's own words (Operation, Job, Credentials), and turns the cluster's many ways to fail into a
// short list of sentinels (errors.go).
//
// It promises that every call has a deadline, that no redirect is followed, that an empty or odd answer is an error and
// never a zero value, and that every id it returns is in canonical text form. It keeps nothing but the
// leases that it was asked for (lease.go): caching belongs to auth and discovery.
//
// One Client serves everybody. Calls are made as the robot whose token Config.Token returns, except WhoAmI, which is
// made with the caller's credentials.
package ytclient
