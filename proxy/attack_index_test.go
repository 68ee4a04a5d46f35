package proxy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// attacks says which test tries which attack: TestName, or TestName/case where the case's name is a string in that test. A
// line of net/http's own (a refusal, a limit) is here too: it is ours to notice when it changes.
var attacks = []struct{ attack, tests string }{
	// Which service is meant.
	{"Host of one service with the header of another", "TestAttackRouting/host of one, id of the other; TestAttackRouting/host of one, long id of the other"},
	{"header of one service with the Host of another", "TestAttackRouting/id of one, host of the other"},
	{"the same with an alias", "TestAttackRouting/alias host of one, id of the other; TestAttackRouting/alias of one, host of the other; TestAttackRouting/id of one, alias host of the other"},
	{"the same with the operation id", "TestAttackRouting/host of one, operation of the other; TestAttackRouting/operation of one, host of the other; TestAttackRouting/operation of one, alias of the other"},
	{"each routing header twice", "TestAttackRouting/id twice, the same; TestAttackRouting/operation twice; TestAttackRouting/alias twice; TestAttackRouting/task twice; TestAttackRouting/service twice; TestAttackHTTP2/id twice"},
	{"differing case in Host", "TestAttackRouting/host in capitals; TestAttackRouting/host of the other in capitals"},
	{"port in Host", "TestAttackRouting/host with a port; TestAttackRouting/host of the other with a port; TestAttackRouting/host with two ports"},
	{"trailing dot in Host", "TestAttackRouting/host with a dot; TestAttackRouting/host of the other with a dot; TestAttackRouting/host with two dots"},
	{"userinfo in Host", "TestAttackRouting/host with userinfo; TestAttackRouting/host as userinfo of the other; TestAttackHTTP2/userinfo in the authority"},
	{"IPv6 in Host", "TestAttackRouting/IPv6; TestAttackRouting/IPv6 and the other's id; TestAttackRouting/IPv6 with a zone"},
	{"absolute-form target that disagrees with Host", "TestAttackRouting/absolute target, the other's host; TestAttackRouting/absolute target of the other; TestAbsoluteFormDecides"},
	{"X-Forwarded-Host", "TestAttackRouting/X-Forwarded-Host of the other; TestAttackRouting/X-Forwarded-Host alone; TestAttackHTTP2/X-Forwarded-Host of the other"},
	{"X_Yt_Taskproxy_Id", "TestAttackRouting/X_Yt_Taskproxy_Id of the other; TestAttackRouting/X_Yt_Taskproxy_Id alone"},
	{"Host beside :authority", "TestAttackHTTP2/host beside the authority; TestHTTP2Names"},
	{"earlier requests of the connection", "TestAttackEarlierRequests"},
	{"a routing header in a trailer", "TestAttackRoutingByTrailer"},
	{"a label that changes hands", "TestAttackLabelChangesHands"},
	{"whatever there is, together", "FuzzAuthorizedIsServed; FuzzAuthorizedIsServedHTTP2; FuzzResolve"},

	// What reaches a job.
	{"Connection listing our headers", "TestAttackConnectionListsOurHeaders; TestAttackRouting/Connection takes the id away"},
	{"caller-supplied X-Yt-Taskproxy-User in every spelling", "TestAttackForgedUser; TestAttackTrailers"},
	{"token in Authorization", "TestAttackCredentials/Authorization: OAuth; TestAttackCredentials/Authorization: Bearer"},
	{"token in the explicit header", "TestAttackCredentials/explicit header; TestAttackCredentials/explicit header, in every spelling"},
	{"the login cookie's copies", "TestAttackCredentials/cookie of the cluster's web interface; TestAttackCredentials/cookie under any name; TestAttackCredentials/tokens of the cluster's web interface"},
	{"tokens that a proxy in front adds", "TestTokensOfAProxyInFront"},
	{"token in the cookie", "TestAttackCredentials/cookie; TestAttackCredentials/cookie, documented spelling; TestStripCookie; FuzzStripCookie"},
	{"token in each of several Cookie headers", "TestAttackCredentials/cookie in each of several headers; TestAttackCredentials/cookie in the last of several headers"},
	{"token in trailers", "TestAttackTrailers; TestRequestTrailers; TestHTTP2RequestTrailers"},
	{"other cookies arrive", "TestAttackCredentials/cookie among others"},
	{"a harmless trailer arrives", "TestAttackTrailers"},
	{"Basic stays", "TestAttackCredentials/Basic stays"},
	{"a page's own Bearer beside the cookie stays", "TestAttackCredentials/a page's own Bearer beside the cookie stays"},
	{"two values of the cookie", "TestAttackTwoCookies"},

	// Where a request ends.
	{"CONNECT", "TestAttackTargets/CONNECT; TestAttackTargets/CONNECT to a path; TestAttackHTTP2/CONNECT; TestAttackHTTP2/extended CONNECT"},
	{"Upgrade: h2c with HTTP2-Settings", "TestAttackUpgradeH2C; TestOtherUpgradesAreServedAsHTTP1"},
	{"failed upgrade reuse", "TestAttackFailedUpgradeReuse"},
	{"bytes sent with a handshake arrive", "TestTunnelLosesNothing"},
	{"# in targets", "TestAttackTargets/fragment; TestAttackTargets/fragment in the query; TestAttackHTTP2/fragment"},
	{"%2f in targets", "TestAttackTargets/slashes in escapes; TestTargetBytes"},
	{".. in targets", "TestAttackTargets/dots; TestAttackTargets/dots in escapes"},
	{"NUL in targets", "TestAttackTargets/NUL; TestAttackTargets/NUL in escapes"},
	{"CR LF in targets", "TestAttackTargets/CR LF in escapes; TestAttackSmuggling/bare CR in the target; TestAttackHTTP2/CR LF in the path; TestHTTP2PathCannotSplitTheRequestLine"},
	{"missing slash in targets", "TestAttackTargets/no leading slash; TestAttackTargets/opaque; TestAttackHTTP2/path without a slash"},
	{"Transfer-Encoding and Content-Length conflicts", "TestAttackSmuggling/length, then chunked; TestAttackSmuggling/chunked, then length; TestAttackSmuggling/lengths differ; TestAttackHTTP2Length; TestOneRequestOneFraming"},
	{"obs-fold", "TestAttackSmuggling/a fold in a header; TestAttackSmuggling/a fold before all headers; TestAttackRouting/id twice by a fold; TestAttackRouting/host folded"},
	{"chunk extensions", "TestAttackSmuggling/chunk extension; TestAttackSmuggling/chunk extension with a bare CR; TestAttackEndless/chunk extension"},
	{"oversize and endless headers", "TestAttackEndless/header line; TestAttackEndless/headers; TestAttackHTTP2/fields of more than 64 KiB; TestAttackSlowCallers"},
	{"a body that breaks", "TestAttackBrokenBodies; TestNothingFollowsAnUnreadBody; TestBodyForNobody; TestMissingBodyHoldsNothing"},

	// HTTP/2.
	{"rapid reset", "TestAttackRapidReset"},
	{"CONTINUATION flood", "TestAttackContinuationFlood; TestAttackSlowCallers/a frame of a header block at a time"},
	{"other floods, closed windows", "TestAttackHTTP2Floods; TestAttackHTTP2Window"},
	{"bad pseudo-headers", "TestAttackHTTP2/two authorities; TestAttackHTTP2/unknown pseudo-header; TestAttackHTTP2/pseudo-header behind a header; TestAttackHTTP2/no method"},
	{"upper-case names", "TestAttackHTTP2/upper-case name"},
	{"connection-specific headers", "TestAttackHTTP2/connection; TestAttackHTTP2/transfer-encoding; TestAttackHTTP2/upgrade; TestAttackHTTP2/te that is not trailers"},
	{"gRPC path without slash", "TestAttackHTTP2/gRPC path without a slash"},

	// Browsers: all services share a site.
	{"sibling fetch with the cookie", "TestSiblings/sibling, fetch; TestSiblings/sibling, fetch without reading"},
	{"sibling POST with the cookie", "TestSiblings/sibling, form; TestSiblings/sibling, PUT"},
	{"sibling frame with the cookie", "TestSiblings/sibling, frame; TestFrameAncestors"},
	{"sibling WebSocket with the cookie", "TestSiblingsWebSocket/sibling; TestSiblingsWebSocket/sibling, newer browser"},
	{"all of these with a token", "TestSiblings; TestSiblingsWebSocket"},
	{"all of these from the same operation", "TestSiblings/same operation, fetch; TestSiblings/same operation, form; TestSiblingsWebSocket/same operation"},
	{"Origin: null", "TestSiblings/null; TestSiblings/sibling, form of a page that says no origin; TestSiblingsWebSocket/null"},
	{"neither header", "TestSiblings/neither header; TestSiblingsWebSocket/no browser"},
	{"preflights", "TestPreflight; TestSiblings/sibling, OPTIONS"},
	{"an open redirect in the login link", "TestLoginLink; FuzzWayBack"},

	// What reaches a caller.
	{"Set-Cookie with parent Domain", "TestAttackAnswers/Set-Cookie with the parent's Domain; TestCleanValues; FuzzSetCookie"},
	{"Set-Cookie with the cluster cookie's name", "TestAttackAnswers/Set-Cookie of the cluster cookie; TestAttackAnswers/Set-Cookie of the cluster cookie, without a name"},
	{"both in a 103 and a trailer", "TestAttackAnswers; TestWhatAJobMayNotSay"},
	{"forged x-yt-taskproxy-error", "TestAttackAnswers/forged x-yt-taskproxy-error; TestAttackAnswers/forged x_yt_taskproxy_error"},
	{"Clear-Site-Data", "TestAttackAnswers/Clear-Site-Data"},
	{"a job that answers 101 unasked", "TestAttackBrokenAnswers/101 unasked; TestUnasked101OverHTTP2; TestAnswersThatAreNone"},
	{"endless headers of a job", "TestAttackBrokenAnswers/endless headers; TestAttackHTTP2Answers; TestEndlessHandshakeAnswer"},
	{"a huge trailer of a job", "TestAttackBrokenAnswers/endless trailer; TestAttackBrokenAnswers/endless trailers; TestAttackHTTP2Answers"},
	{"early close of a job", "TestAttackBrokenAnswers/early close in the body; TestAttackBrokenAnswers/early close in the headers; TestBrokenInTheMiddle"},
	{"an answer with two ends", "TestAttackAnswerFraming"},
	{"secrets in what the proxy says", "TestSecretsStaySecret; TestAccessLog"},
}

// The tests that the index names exist.
func TestAttackIndex(t *testing.T) {
	t.Parallel()
	words := testWords(t)
	for _, line := range attacks {
		for entry := range strings.SplitSeq(line.tests, "; ") {
			name, rest, isCase := strings.Cut(entry, "/")
			literals, ok := words[name]
			if !ok || isCase && !literals[rest] {
				t.Errorf("%s: there is no %s", line.attack, entry)
			}
		}
	}
}

// testWords are the tests of this package, each with the strings in it.
func testWords(t *testing.T) map[string]map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	words := make(map[string]map[string]bool)
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			literals := make(map[string]bool)
			ast.Inspect(f, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if s, err := strconv.Unquote(lit.Value); err == nil {
						literals[s] = true
					}
				}
				return true
			})
			words[f.Name.Name] = literals
		}
	}
	return words
}
