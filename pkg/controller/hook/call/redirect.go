package call

import (
	"errors"
	"net/http"
)

// redirects is how many are followed, as by the Go client's own rule.
const redirects = 10

// checkRedirect follows redirects by the Go client's own rules, but for
// credentials. The client would go on to send them to another port, to a
// subdomain and without TLS; here they stay with the one host that they are for,
// and once a call has left it they are not sent again.
func checkRedirect(next *http.Request, via []*http.Request) error {
	if len(via) >= redirects {
		return errors.New("redirected too often")
	}
	first := hostOf(via[0].URL)
	for _, request := range append(via[1:len(via):len(via)], next) {
		if !first.trusts(hostOf(request.URL)) {
			next.Header.Del(headerAuthorization)
			// The address that led here may have a secret in its query.
			next.Header.Del(headerReferer)
			return nil
		}
	}
	return nil
}
