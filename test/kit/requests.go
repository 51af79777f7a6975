package kit

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// httpClient trusts one authority, and shows a certificate if there is one. It
// keeps no connection: it is for checks, whose servers come and go.
func httpClient(ca *CA, client *KeyPair) *http.Client {
	config := &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
	if client != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := client.TLS()
			return &cert, err
		}
	}
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
	}
}

// send sends a request and returns the body of the answer, which must be 200.
func send(ctx context.Context, client *http.Client, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}

// postJSON posts to etcd's JSON gateway.
func postJSON(ctx context.Context, client *http.Client, url string, body, into any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	answer, err := send(ctx, client, http.MethodPost, url, content)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

// answers200 is a readiness check: a GET of the URL answers 200.
func answers200(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := send(ctx, client, http.MethodGet, url, nil)
		return err
	}
}
