// Package proxy carries a request from an authorized caller to a job.
package proxy
