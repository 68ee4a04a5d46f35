package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateDir is the directory of the jobs' sandboxes and of the robot's token: nobody else's business.
type stateDir struct {
	path      string // absolute
	temporary bool
	written   []string // paths of the demo's own files
}

// openStateDir makes the directory. One that exists is used only if no other user can look into it: it is left as it is,
// so that a slip like --state-dir=/tmp costs nothing.
func openStateDir(path string) (*stateDir, error) {
	if path == "" {
		temporary, err := os.MkdirTemp("", "task-proxy-demo-") // made with mode 0700
		if err != nil {
			return nil, fmt.Errorf("make a state directory: %w", err)
		}
		return &stateDir{path: temporary, temporary: true}, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--state-dir: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("--state-dir: %s is no directory", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("--state-dir: %s has mode %#o: other users must not see into it, want 0700", path, info.Mode().Perm())
	}
	return &stateDir{path: path}, nil
}

// write puts a file into the directory and returns its path.
func (s *stateDir) write(name, content string) (string, error) {
	path := filepath.Join(s.path, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}
	s.written = append(s.written, path)
	return path, nil
}

// close removes a temporary directory, and from a given one the demo's own files.
func (s *stateDir) close() error {
	remove := os.RemoveAll
	paths := []string{s.path}
	if !s.temporary {
		remove, paths = os.Remove, s.written
	}
	for _, path := range paths {
		if err := remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("clear the state directory: %w", err)
		}
	}
	return nil
}
