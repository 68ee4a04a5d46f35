package ytclient

import (
	"net/http"

	"go.ytsaurus.tech/yt/go/proto/core/rpc"
)

// wireCredentials put Credentials on a request to the cluster, byte for byte as the caller gave them. (The SDK's cookie
// credentials go through net/http's cookie writer, which changes some values, and always add a CSRF header.)
type wireCredentials struct{ Credentials }

// Set implements the SDK's credentials.
func (w wireCredentials) Set(r *http.Request) {
	switch w.Kind {
	case OAuth:
		r.Header.Set("Authorization", "OAuth "+w.Secret)
	case Bearer:
		r.Header.Set("Authorization", "Bearer "+w.Secret)
	case Cookie:
		r.Header.Set("Cookie", w.CookieName+"="+w.Secret)
	}
}

// SetExtension implements the SDK's credentials for RPC, which we do not speak.
func (wireCredentials) SetExtension(*rpc.TRequestHeader) {}
