// Package check tries a cluster before, or while, a task proxy serves it: has the robot the rights that it needs, and no
// more; and what does the cluster itself let the pages of services do. It says so in lines for people, each missing right
// with the command that grants it, and leaves the cluster as it was.
package check
