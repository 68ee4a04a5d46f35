package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// tokenFile is the robot's token in a file that may be replaced at any time.
type tokenFile struct {
	path     string
	logger   *slog.Logger
	reloaded prometheus.Gauge // nil: nobody reads it

	mu    sync.Mutex
	token string
	bad   string // what was wrong with the file when it was last looked at; logged once
}

// RobotToken opens the file of --yt-token-path and returns the source of the robot's token, which reads the file again when it
// changes. The error names the path and what is wrong.
func RobotToken(cfg Config, logger *slog.Logger) (func() (string, error), error) {
	t, err := openToken(cfg.YTTokenPath, logger)
	if err != nil {
		return nil, err
	}
	return t.Token, nil
}

// openToken reads the token for the first time. The error names the path and what is wrong.
func openToken(path string, logger *slog.Logger) (*tokenFile, error) {
	t := &tokenFile{path: path, logger: logger}
	if err := t.refresh(); err != nil {
		return nil, err
	}
	return t, nil
}

// Token returns the token of now. While the file is being replaced, and missing or empty for a moment, the last good token
// counts; the log says so.
func (t *tokenFile) Token() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.refresh()
	t.report(err == nil)
	switch {
	case err == nil:
		t.bad = ""
	case err.Error() != t.bad:
		t.bad = err.Error()
		t.logger.Warn("token file cannot be read, using the last token", "err", err)
	}
	return t.token, nil
}

func (t *tokenFile) report(good bool) {
	switch {
	case t.reloaded == nil:
	case good:
		t.reloaded.Set(1)
	default:
		t.reloaded.Set(0)
	}
}

// refresh reads the file. What it holds is compared, not its time: a file that is renamed over another one may well be as old and as long.
func (t *tokenFile) refresh() error {
	path, err := singleFile(t.path)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return tokenError(path, err)
	}
	token, err := parseToken(string(content))
	if err != nil {
		return fmt.Errorf("the robot's token: %s %w", path, err)
	}
	if t.token != "" && token != t.token {
		t.logger.Info("token changed")
	}
	t.token = token
	return nil
}

// tokenError says in one line what the system says in its own words.
func tokenError(path string, err error) error {
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return fmt.Errorf("the robot's token: cannot read %s: %w", shownPath(path), err)
}

// shownPath is path, unless that may be the token itself, given in the place of its file: a single name that nothing has.
func shownPath(path string) string {
	if path == "" || strings.ContainsRune(path, filepath.Separator) {
		return path
	}
	if _, err := os.Lstat(path); err == nil {
		return path
	}
	return "(not shown: want the path of a file, not a token)"
}

// singleFile is path, or the one file in the directory path, or of several the one called token: a mounted Kubernetes secret
// is a directory whose files are named by the secret's keys. Names that begin with a dot are the mount's own.
func singleFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", tokenError(path, err)
	}
	if !info.IsDir() {
		return path, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", tokenError(path, err)
	}
	var found []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			found = append(found, e.Name())
		}
	}
	switch {
	case len(found) == 1:
		return filepath.Join(path, found[0]), nil
	case slices.Contains(found, "token"):
		return filepath.Join(path, "token"), nil
	}
	return "", fmt.Errorf("the robot's token: the directory %s holds %d files, none of them called token: want one", path, len(found))
}

// parseToken trims what surrounds a token: white space, and the quotes with which the yt command line prints it.
func parseToken(content string) (string, error) {
	token := strings.TrimSpace(content)
	if len(token) >= 2 && token[0] == '"' && token[len(token)-1] == '"' {
		token = token[1 : len(token)-1]
	}
	if token == "" {
		return "", errors.New("is empty")
	}
	for i := 0; i < len(token); i++ {
		if token[i] <= ' ' || token[i] > '~' {
			return "", errors.New("holds more than one word, or bytes that no token has")
		}
	}
	return token, nil
}
