package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"taskproxy/proxy"
)

// certificatePeriod is the time between two looks at the certificate's files.
const certificatePeriod = 10 * time.Second

// certificate is the public listener's certificate and key, in two files that may be replaced at any time. A handshake takes
// the one in use without a lock, and connections keep the one that they began with.
type certificate struct {
	certFile, keyFile string
	logger            *slog.Logger
	certificateMetrics

	current atomic.Pointer[tls.Certificate] // never nil

	// Only who opened it, and then run, touch these.
	cert, key []byte // the files' content, of the one in use
	bad       string // what was wrong with the files when they were last looked at; logged once
}

// openCertificate reads the pair for the first time. The error names the flag, the file and what is wrong.
func openCertificate(certFile, keyFile string, logger *slog.Logger, r prometheus.Registerer) (*certificate, error) {
	metrics, err := newCertificateMetrics(r)
	if err != nil {
		return nil, err
	}
	c := &certificate{certFile: certFile, keyFile: keyFile, logger: logger, certificateMetrics: metrics}
	if err := c.refresh(); err != nil {
		return nil, err
	}
	return c, nil
}

// config is for the server that shows the certificate.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2", "http/1.1"},
		GetCertificate:     func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
		GetConfigForClient: proxy.GatherTLS,
	}
}

// run looks at the files every so often until ctx ends; then it returns nil. It compares what they hold, not their times: a
// Kubernetes secret is replaced by swapping a symlink above them. While they hold no pair, as half-way through being
// replaced, the last good one counts; the log says so.
func (c *certificate) run(ctx context.Context, period time.Duration) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		switch err := c.refresh(); {
		case err == nil:
			c.bad = ""
		case err.Error() != c.bad:
			c.bad = err.Error()
			c.logger.Warn("certificate cannot be used, the last one stays", "err", err)
		}
	}
}

// refresh reads the files, and makes what they hold the certificate in use if it is another one, and good.
func (c *certificate) refresh() (err error) {
	defer func() {
		if err != nil {
			c.reloaded.Set(0)
		}
	}()
	cert, key, err := readPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		c.reloaded.Set(1)
		return nil
	}
	pair, err := parsePair(c.certFile, c.keyFile, cert, key)
	if err != nil {
		return err
	}
	c.tell(pair)
	c.current.Store(pair)
	c.cert, c.key = cert, key
	c.expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	c.reloaded.Set(1)
	return nil
}

// tell logs what callers will see. A certificate that has expired is shown all the same: there is none better.
func (c *certificate) tell(pair *tls.Certificate) {
	logger := c.logger.With("file", c.certFile, "serial", pair.Leaf.SerialNumber.Text(16), "names", pair.Leaf.DNSNames,
		"expires", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	if time.Now().After(pair.Leaf.NotAfter) {
		logger.Warn("certificate loaded that has expired")
		return
	}
	logger.Info("certificate loaded")
}

// checkPair reports all that keeps the two files from being a certificate and its key; nil is good.
func checkPair(certFile, keyFile string) []error {
	cert, certErr := readFor("tls-cert-file", certFile)
	key, keyErr := readFor("tls-key-file", keyFile)
	if certErr != nil || keyErr != nil {
		return []error{certErr, keyErr}
	}
	if _, err := parsePair(certFile, keyFile, cert, key); err != nil {
		return []error{err}
	}
	return nil
}

func readPair(certFile, keyFile string) (cert, key []byte, err error) {
	cert, certErr := readFor("tls-cert-file", certFile)
	key, keyErr := readFor("tls-key-file", keyFile)
	return cert, key, cmp.Or(certErr, keyErr)
}

// readRoots reads the file of --yt-ca-file. One that holds no certificate at all is not what was meant.
func readRoots(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(content) {
		err = fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return content, err
}

// readFor reads the file that a flag names.
func readFor(flag, path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: cannot read %s: %w", flag, path, err)
	}
	return content, nil
}

// parsePair makes a certificate of what the files hold. Errors of crypto/tls say what is wrong and show no part of a key.
func parsePair(certFile, keyFile string, cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file %s, --tls-key-file %s: want a certificate and its key, in PEM: %w", certFile, keyFile, err)
	}
	return &pair, nil
}
