package ytlocal

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"io"

	"go.ytsaurus.tech/yt/go/yterrors"

	"taskproxy/ytclient/ytlocal/scheduler"
)

// runWriteFile replaces a file's bytes, or with <append=%true> puts bytes behind them.
func runWriteFile(k *call) (any, error) {
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	hash, _, err := k.params.bool("compute_md5")
	if err != nil {
		return nil, err
	}
	data, err := readAll(k.body, maxData)
	if err != nil {
		return nil, err
	}
	if err := k.lock(); err != nil {
		return nil, err
	}
	defer k.unlock()
	n, err := k.writable(p, "file")
	if err != nil {
		return nil, err
	}
	if err := k.store(n, p.flag("append"), data); err != nil {
		return nil, err
	}
	if hash {
		all, _ := n.dataIn(k.tx).([]byte)
		sum := md5.Sum(all)
		k.c.setAttr(n, k.tx, "md5", hex.EncodeToString(sum[:]))
	}
	return nil, nil
}

func runReadFile(k *call) (any, error) {
	p, err := k.params.path("path")
	if err != nil {
		return nil, err
	}
	n, err := k.c.find(p, k.tx)
	if err != nil {
		return nil, err
	}
	if n.typ != "file" {
		return nil, fail(yterrors.CodeGeneric, "Node %s is a %s, not a file", n.path(), n.typ)
	}
	if err := k.allowed(n, "read"); err != nil {
		return nil, err
	}
	data, _ := n.dataIn(k.tx).([]byte)
	size := int64(len(data))
	offset, _, err := k.params.int("offset")
	if err != nil {
		return nil, err
	}
	offset = min(max(offset, 0), size)
	length, ok, err := k.params.int("length")
	if err != nil {
		return nil, err
	}
	if !ok || length < 0 || length > size-offset {
		length = size - offset
	}
	return bytesStream(data[offset : offset+length]), nil
}

// bytesStream is bytes as the answer of a command.
func bytesStream(b []byte) stream {
	return stream{contentType: "application/octet-stream", write: func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}}
}

// fetch opens a file of Cypress for a job's sandbox. Who may read it was checked when the operation started.
func (c *Cluster) fetch(text string) (scheduler.File, error) {
	p, err := parsePath(text)
	if err != nil {
		return scheduler.File{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.find(p, nil)
	if err != nil {
		return scheduler.File{}, err
	}
	if n.typ != "file" {
		return scheduler.File{}, fail(yterrors.CodeGeneric, "Node %s is a %s, not a file", n.path(), n.typ)
	}
	f := scheduler.File{Name: n.key}
	if name, ok := n.attrs["file_name"].(string); ok && name != "" {
		f.Name = name
	}
	if name, ok := p.attrs["file_name"].(string); ok && name != "" {
		f.Name = name
	}
	f.Executable, _ = toBool(n.attrs["executable"])
	if executable, ok := toBool(p.attrs["executable"]); ok {
		f.Executable = executable
	}
	data, _ := n.data.([]byte)
	f.Content = io.NopCloser(bytes.NewReader(data))
	return f, nil
}
