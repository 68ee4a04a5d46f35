package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().AddDate(-30, 0, 0), NotAfter: time.Now().AddDate(10, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{cert, key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue makes a certificate for all names under tp.example.net and others, and its key.
func (a *authority) issue(t *testing.T, serial int64, notAfter time.Time) (cert, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"*.tp.example.net", "tp.example.net", "elsewhere.example.org"},
		NotBefore: time.Now().AddDate(-30, 0, 0), NotAfter: notAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	must(t, err)
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", secret)
}

// secret is a directory as Kubernetes mounts one: the files are links through ..data, which is replaced as a whole.
type secret struct {
	t     *testing.T
	dir   string
	swaps int
}

func mountSecret(t *testing.T, cert, key string) *secret {
	t.Helper()
	s := &secret{t: t, dir: t.TempDir()}
	s.swap(cert, key)
	must(t, os.Symlink("..data/tls.crt", s.cert()))
	must(t, os.Symlink("..data/tls.key", s.key()))
	return s
}

func (s *secret) cert() string { return filepath.Join(s.dir, "tls.crt") }
func (s *secret) key() string  { return filepath.Join(s.dir, "tls.key") }

func (s *secret) swap(cert, key string) {
	s.t.Helper()
	s.swaps++
	name := fmt.Sprintf("..%d", s.swaps)
	must(s.t, os.Mkdir(filepath.Join(s.dir, name), 0o700))
	must(s.t, os.WriteFile(filepath.Join(s.dir, name, "tls.crt"), []byte(cert), 0o600))
	must(s.t, os.WriteFile(filepath.Join(s.dir, name, "tls.key"), []byte(key), 0o600))
	must(s.t, os.Symlink(name, filepath.Join(s.dir, "..next")))
	must(s.t, os.Rename(filepath.Join(s.dir, "..next"), filepath.Join(s.dir, "..data")))
	must(s.t, os.RemoveAll(filepath.Join(s.dir, fmt.Sprintf("..%d", s.swaps-1))))
}

// A certificate follows its files within ten seconds, and what cannot be used changes nothing but the log and a metric.
func TestCertificateFollowsItsFiles(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	far := time.Now().AddDate(5, 0, 0).Truncate(time.Second)
	oneCert, oneKey := a.issue(t, 1, far)
	twoCert, twoKey := a.issue(t, 2, far.AddDate(1, 0, 0))
	oldCert, oldKey := a.issue(t, 3, time.Now().AddDate(-29, 0, 0)) // also by the clock of a test in a bubble
	s := mountSecret(t, oneCert, oneKey)
	synctest.Test(t, func(t *testing.T) {
		log := new(buffer)
		registry := prometheus.NewRegistry()
		c, err := openCertificate(s.cert(), s.key(), NewLogger(log, Config{LogFormat: "json"}), registry)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.run(ctx, certificatePeriod) }()
		defer func() {
			cancel()
			must(t, <-done)
		}()
		want := func(what string, serial int64, good float64) {
			t.Helper()
			config := c.config()
			if config.GetConfigForClient == nil {
				t.Error("what HTTP/2 writes within TLS is not gathered")
			}
			pair, err := config.GetCertificate(nil)
			must(t, err)
			if got := pair.Leaf.SerialNumber.Int64(); got != serial {
				t.Errorf("%s: certificate %d is in use, want %d", what, got, serial)
			}
			if got := testutil.ToFloat64(c.reloaded); got != good {
				t.Errorf("%s: reloaded is %v, want %v", what, got, good)
			}
			if got := testutil.ToFloat64(c.expiry); got != float64(pair.Leaf.NotAfter.Unix()) {
				t.Errorf("%s: expiry is %v", what, got)
			}
		}
		look := func() {
			time.Sleep(certificatePeriod + time.Millisecond)
			synctest.Wait()
		}
		want("at first", 1, 1)
		s.swap(twoCert, twoKey)
		want("not looked at yet", 1, 1)
		look()
		want("swapped", 2, 1)
		s.swap(oneCert, twoKey)
		look()
		look()
		want("no pair", 2, 0)
		s.swap("garbage", oneKey)
		look()
		want("garbage", 2, 0)
		must(t, os.Remove(s.key()))
		look()
		look()
		want("no file", 2, 0)
		must(t, os.Symlink("..data/tls.key", s.key()))
		s.swap(twoCert, twoKey)
		look()
		want("as before", 2, 1)
		s.swap(oldCert, oldKey)
		look()
		want("expired: there is none better", 3, 1)
		text := log.String()
		if n := strings.Count(text, "the last one stays"); n != 3 {
			t.Errorf("%d warnings, want one for each thing that was wrong:\n%s", n, text)
		}
		if !strings.Contains(text, `"level":"WARN","msg":"certificate loaded that has expired"`) || strings.Count(text, `"msg":"certificate loaded"`) != 2 {
			t.Errorf("the log does not tell what was loaded:\n%s", text)
		}
		if strings.Contains(text, "PRIVATE") {
			t.Error("the log shows a key")
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
	})
}

// What keeps TLS from starting is told with the flag and the file.
func TestCertificateProblems(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	cert, key := a.issue(t, 1, time.Now().AddDate(1, 0, 0))
	_, other := a.issue(t, 2, time.Now().AddDate(1, 0, 0))
	s := mountSecret(t, cert, key)
	wrong := mountSecret(t, cert, other)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"--tls-cert-file=" + s.cert()}, []string{"--tls-key-file (or TASK_PROXY_TLS_KEY_FILE) is required"}},
		{[]string{"--tls-key-file=" + s.key()}, []string{"--tls-cert-file (or TASK_PROXY_TLS_CERT_FILE) is required"}},
		{[]string{"--tls-cert-file=/no/file", "--tls-key-file=" + s.key()}, []string{"--tls-cert-file: cannot read /no/file: no such file"}},
		{[]string{"--tls-cert-file=" + s.cert(), "--tls-key-file=/no/file"}, []string{"--tls-key-file: cannot read /no/file: no such file"}},
		{[]string{"--tls-cert-file=" + s.dir, "--tls-key-file=" + s.key()}, []string{"--tls-cert-file: cannot read " + s.dir + ": is a directory"}},
		{[]string{"--tls-cert-file=" + wrong.cert(), "--tls-key-file=" + wrong.key()}, []string{"--tls-cert-file", wrong.cert(), "private key does not match"}},
		{[]string{"--tls-cert-file=" + s.key(), "--tls-key-file=" + s.cert()}, []string{"--tls-cert-file", s.key()}},
	} {
		_, err := ParseConfig(append(tt.args, good...), env(nil), nil)
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") != 1 {
				t.Errorf("%q: %v\nwant one problem with %q", tt.args, err, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), strings.Split(key, "\n")[1]) {
			t.Errorf("%q: the error shows a key", tt.args)
		}
	}
	c, err := ParseConfig(append([]string{"--tls-cert-file=" + s.cert(), "--tls-key-file=" + s.key()}, good...), env(nil), nil)
	if err != nil || c.TLSCertFile != s.cert() || c.TLSKeyFile != s.key() {
		t.Errorf("a good pair: %v", err)
	}
}

// trusts is a client's side of TLS: it knows the authority and speaks the protocols.
func (a *authority) trusts(protocols ...string) *tls.Config {
	return &tls.Config{RootCAs: a.pool(), NextProtos: protocols}
}
