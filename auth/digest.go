package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"

	"taskproxy/ytclient"
)

// digest stands for a credential in memory. Without the key of its digester, which never leaves the process, nothing
// follows from it: a dump of the heap does not even confirm a guess.
type digest [sha256.Size]byte

// digester turns credentials into digests under one random key. It is safe for concurrent use.
type digester struct{ pool sync.Pool }

// mac is the working memory of one digest.
type mac struct {
	hash hash.Hash
	buf  []byte
	sum  digest
}

func newDigester() *digester {
	var key [sha256.Size]byte
	_, _ = rand.Read(key[:]) // never fails: crypto/rand ends the process instead
	d := &digester{}
	d.pool.New = func() any { return &mac{hash: hmac.New(sha256.New, key[:]), buf: make([]byte, 0, 512)} }
	return d
}

// of digests c with its kind and cookie name: the cluster may know one string as a token of alice's and as a cookie of
// bob's. Lengths stand before the parts, so that no two credentials run together into the same bytes.
func (d *digester) of(c ytclient.Credentials) digest {
	m := d.pool.Get().(*mac)
	buf := m.buf[:0]
	for _, part := range [...]string{string(c.Kind), c.CookieName, c.Secret} {
		buf = binary.AppendUvarint(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	m.hash.Reset()
	m.hash.Write(buf)
	m.hash.Sum(m.sum[:0])
	sum := m.sum
	clear(buf) // the pool must not keep a secret
	m.buf = buf
	d.pool.Put(m)
	return sum
}
