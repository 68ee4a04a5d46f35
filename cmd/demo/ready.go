package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// readiness is the content of the ready file.
type readiness struct {
	Proxy      string       `json:"proxy"` // empty with --cluster-only
	Admin      string       `json:"admin"` // empty with --cluster-only
	Cluster    string       `json:"cluster"`
	BaseDomain string       `json:"base_domain"`
	Users      []user       `json:"users"`
	Services   []serviceRow `json:"services"`
}

// newReadiness describes the running demo.
func newReadiness(baseDomain string, cluster *cluster, proxy *proxy, services []*service) readiness {
	r := readiness{
		Proxy:      "http://" + proxy.public,
		Admin:      "http://" + proxy.admin,
		Cluster:    cluster.url,
		BaseDomain: baseDomain,
		Users:      cluster.users,
	}
	for _, service := range services {
		r.Services = append(r.Services, service.row)
	}
	return r
}

// readyFile tells other programs that everything answers, and with which tokens. The zero path means that nobody asked.
type readyFile struct{ path string }

// newReadyFile removes what an earlier run may have left: a reader must not take it for this run's.
func newReadyFile(path string) (*readyFile, error) {
	if path == "" {
		return &readyFile{}, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("--ready-file: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("--ready-file: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("--ready-file: %s is there and is no file", path)
	}
	// A directory that is missing or closed to us is better found before the start than after it.
	probe, err := os.CreateTemp(filepath.Dir(path), ".ready-*")
	if err != nil {
		return nil, fmt.Errorf("--ready-file: %w", err)
	}
	probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return nil, fmt.Errorf("--ready-file: %w", err)
	}
	r := &readyFile{path: path}
	return r, r.remove()
}

// write puts the file into its place whole. It holds tokens: mode 0600 from its first byte on.
func (r *readyFile) write(content readiness) error {
	if r.path == "" {
		return nil
	}
	if content.Services == nil {
		content.Services = []serviceRow{}
	}
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(r.path), ".ready-*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	_, err = file.Write(append(data, '\n'))
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), r.path)
	}
	if err != nil {
		os.Remove(file.Name())
		return fmt.Errorf("--ready-file: %w", err)
	}
	return nil
}

// remove takes the file away at the end: its tokens open nothing any more.
func (r *readyFile) remove() error {
	if r.path == "" {
		return nil
	}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return nil
}
