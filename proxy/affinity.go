package proxy

import (
	"net/http"
	"strings"

	"taskproxy/discovery"
)

// affinityCookie keeps a browser with the job that it was sent to first, for services whose annotation asks for that. Its value is
// the job's handle (discovery.Service.Handle), which proves nothing and opens nothing: it chooses among jobs that the caller
// may have anyway, and one that is not among them counts as none. So whoever can write cookies here, a page of a sibling service
// for the parent domain say, can at most choose a job for a visitor, and that only of a service that is open to them as well.
//
// It is between us and the browser. Like the logins it never reaches a job, and no job can set it (cookies.go).
const affinityCookie = "yt_taskproxy_affinity"

// pinned is the index of the endpoint of s that the caller is to stay with, or -1. s is the exchange's service, or what that is now. Through a host that services share there are no
// cookies, so there is no affinity either.
func (x *exchange) pinned(s *discovery.Service) int {
	if !s.Affinity || x.shared {
		return -1
	}
	// Of several the first that leads somewhere: what somebody else has set for a parent domain comes along too.
	for _, c := range x.in.CookiesNamed(affinityCookie) {
		if i, ok := s.ByHandle(c.Value); ok {
			return i
		}
	}
	return -1
}

// pin tells the browser to come back to the job that answered, unless it has come by its word. The cookie is for this host only, and
// for as long as the browser runs. It is for no script.
//
// Where pages of other sites may use the service, also in frames, it has to go with what these ask for; browsers do that
// over https only. It says nothing about its bearer that would make it worth keeping from them.
func (ru *rules) pin(h http.Header, x *exchange) {
	s := x.service
	if !s.Affinity || x.shared {
		return
	}
	if i := x.pinned(s); i >= 0 && s.Endpoints[i].JobID == x.endpoint.JobID {
		return
	}
	var b strings.Builder
	b.WriteString(affinityCookie + "=" + s.Handle(x.endpoint) + "; Path=/; HttpOnly")
	switch secure := ru.schemeOf(x.in) == "https"; {
	case secure && (ru.framed || len(s.Origins) > 0):
		b.WriteString("; Secure; SameSite=None")
	case secure:
		b.WriteString("; Secure; SameSite=Lax")
	default:
		b.WriteString("; SameSite=Lax")
	}
	h["Set-Cookie"] = append(h["Set-Cookie"], b.String())
}
