// Package serve is the task proxy as a process: its configuration, and the life of its parts from start to shutdown. The
// commands task-proxy and demo both run it, so that what the demo shows is the product.
package serve
