package scheduler

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names in the directory of a job.
const (
	sandboxDir = "sandbox"
	tempDir    = "tmp"
	stdoutFile = "stdout"
	stderrFile = "stderr"
)

// standardPath finds the programs of a bare system, when this process has no PATH itself.
const standardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// errorTail is how much of a failed job's stderr its operation's error shows.
const errorTail = 1 << 10

// sandbox is where a job runs, and what it writes to.
type sandbox struct {
	dir, temp      string
	stdout, stderr *os.File
}

// prepare makes the directory of a job and fetches its files. What it made is removed by clear, also when it fails.
func (s *Scheduler) prepare(j *job) (_ *sandbox, err error) {
	j.dir = filepath.Join(s.cfg.Dir, j.id)
	box := &sandbox{dir: filepath.Join(j.dir, sandboxDir), temp: filepath.Join(j.dir, tempDir)}
	for _, dir := range []string{j.dir, box.dir, box.temp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the sandbox: %w", err)
		}
	}
	for _, file := range j.task.files {
		if err := s.fetch(j.op, file, box.dir); err != nil {
			return nil, fmt.Errorf("fetch the file %s: %w", quote(file.path), err)
		}
	}
	if box.stdout, err = create(filepath.Join(j.dir, stdoutFile), 0o600); err != nil {
		return nil, err
	}
	if box.stderr, err = create(filepath.Join(j.dir, stderrFile), 0o600); err != nil {
		box.close()
		return nil, err
	}
	return box, nil
}

// close closes our ends of the outputs; the job has its own.
func (b *sandbox) close() {
	for _, f := range []*os.File{b.stdout, b.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// create makes a file that must not exist: what a name points to is never followed or overwritten.
func create(path string, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, perm)
}

// fetch copies one file into a sandbox.
func (s *Scheduler) fetch(op *operation, file filePath, dir string) (err error) {
	from, err := s.cfg.Fetch(file.path)
	if err != nil {
		return err
	}
	if from.Content == nil {
		return errors.New("it has no content")
	}
	defer from.Content.Close()
	if file.name != "" {
		from.Name = file.name
	}
	if file.executable != nil {
		from.Executable = *file.executable
	}
	if !isFileName(from.Name) {
		return fmt.Errorf("its name is %s; it must be a plain file name", quote(from.Name))
	}
	perm := fs.FileMode(0o600)
	if from.Executable {
		perm = 0o700
	}
	to, err := create(filepath.Join(dir, from.Name), perm)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("another file has its name, %s", quote(from.Name))
	}
	if err != nil {
		return err
	}
	// A close that fails is a file that is not complete.
	defer func() { err = errors.Join(err, to.Close()) }()
	_, err = io.Copy(to, &untilEnding{from.Content, op.ending})
	return err
}

// untilEnding stops reading when the operation ends.
type untilEnding struct {
	r      io.Reader
	ending <-chan struct{}
}

func (u *untilEnding) Read(p []byte) (int, error) {
	select {
	case <-u.ending:
		return 0, errors.New("the operation is ending")
	default:
		return u.r.Read(p)
	}
}

// clear removes the sandbox of a job that has ended; its outputs stay.
func (s *Scheduler) clear(j *job) {
	if j.dir == "" {
		return
	}
	for _, name := range []string{sandboxDir, tempDir} {
		if err := os.RemoveAll(filepath.Join(j.dir, name)); err != nil {
			s.log.Warn("cannot remove a sandbox", "operation_id", j.op.id, "job_id", j.id, "err", err)
		}
	}
}

// baseEnviron is the environment of a job before its task and the scheduler have a say.
func baseEnviron(configured []string, box *sandbox) []string {
	env := slices.Clone(configured)
	if configured == nil {
		path := os.Getenv("PATH")
		if path == "" {
			path = standardPath
		}
		env = []string{"PATH=" + path, "LANG=C.UTF-8"}
	}
	for name, value := range map[string]string{"HOME": box.dir, "TMPDIR": box.temp} {
		if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// stderrSize is the size of what readStderr returns; 0 when there is nothing.
func stderrSize(j *job) int64 {
	if j.dir == "" {
		return 0
	}
	info, err := os.Stat(filepath.Join(j.dir, stderrFile))
	if err != nil {
		return 0
	}
	return min(info.Size(), j.task.stderrLimit)
}

// readStderr reads at most limit bytes of a job's stderr: all of it, or its head and its tail, the tail rather than the
// head.
func readStderr(j *job, limit int64) ([]byte, error) {
	if j.dir == "" {
		return nil, nil
	}
	f, err := os.Open(filepath.Join(j.dir, stderrFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the stderr of job %s: %w", j.id, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the stderr of job %s: %w", j.id, err)
	}
	const gap = "\n...skipped...\n"
	size := info.Size()
	if size <= limit || limit < 2*int64(len(gap)) {
		return readSection(f, max(0, size-limit), min(size, limit))
	}
	half := (limit - int64(len(gap))) / 2
	head, err := readSection(f, 0, half)
	if err != nil {
		return nil, err
	}
	rest := limit - half - int64(len(gap))
	tail, err := readSection(f, size-rest, rest)
	if err != nil {
		return nil, err
	}
	return slices.Concat(head, []byte(gap), tail), nil
}

func readSection(f *os.File, offset, n int64) ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(f, offset, n))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Base(f.Name()), err)
	}
	return data, nil
}

// tailOfStderr is the end of what a failed job wrote, for the error of its operation.
func tailOfStderr(j *job) string {
	f, err := os.Open(filepath.Join(j.dir, stderrFile))
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	n := min(info.Size(), errorTail)
	data, err := readSection(f, info.Size()-n, n)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(data), "?"))
}
