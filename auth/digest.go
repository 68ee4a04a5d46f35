package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"taskproxy/ytclient"
)

// digest stands for a credential in memory. Without the key of its digester, which never leaves the process, nothing
// follows from it: a dump of the heap does not even confirm a guess.
type digest [sha256.Size]byte

// digester turns credentials into digests under one random key. It is safe for concurrent use.
type digester struct{ key [sha256.Size]byte }

func newDigester() *digester {
	d := new(digester)
	_, _ = rand.Read(d.key[:]) // never fails: crypto/rand ends the process instead
	return d
}

// of digests c with its kind and cookie name: the cluster may know one string as a token of alice's and as a cookie of
// bob's. Lengths stand before the parts, so that no two credentials run together into the same bytes.
//
// The key stands before all of them, which is half the work of HMAC. What that is better at is for digests that others see.
func (d *digester) of(c ytclient.Credentials) digest {
	var room [512]byte
	buf := append(room[:0], d.key[:]...)
	for _, part := range [...]string{string(c.Kind), c.CookieName, c.Secret} {
		buf = binary.AppendUvarint(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	sum := sha256.Sum256(buf)
	clear(buf) // the memory must not keep a secret
	return sum
}
