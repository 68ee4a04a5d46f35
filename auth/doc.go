// Package auth says who is calling and whether they may have a service's operation.
package auth
