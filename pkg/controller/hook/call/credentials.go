package call

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"unicode"
)

// credentials are what a connection is made with at one time.
type credentials struct {
	// roots are trusted instead of the system's; nil means the system's.
	roots *x509.CertPool
	// certificates are what this side shows.
	certificates []tls.Certificate
	// authorization is the value of the header; empty means none.
	authorization string
	// secrets are the texts that must not be seen in an error.
	secrets []string
	// identity is equal for equal credentials.
	identity [sha256.Size]byte
}

// credentials reads what the connection needs in the contents of its references.
// The error is a *CredentialError.
func (c *connection) credentials(contents map[Reference]*Content) (*credentials, error) {
	var (
		made = &credentials{}
		hash = sha256.New()
		err  error
	)
	// What goes into the identity has its length before it, so that no two
	// different sets of it look alike.
	add := func(parts ...[]byte) {
		for _, part := range parts {
			_ = binary.Write(hash, binary.BigEndian, uint64(len(part)))
			hash.Write(part)
		}
	}
	var bundle []byte
	if c.CABundle != nil {
		if bundle, err = c.bundle(contents); err != nil {
			return nil, err
		}
		made.roots = x509.NewCertPool()
		if !made.roots.AppendCertsFromPEM(bundle) {
			// An inline bundle was checked before.
			_, at := c.bundleAt(contents)
			return nil, at.problem("has no PEM certificate in it")
		}
	}
	add(bundle)
	if c.ClientTLS != nil {
		at := c.in(contents, "clientTLS", Reference{KindSecret, c.ClientTLS.SecretRef.Namespace, c.ClientTLS.SecretRef.Name})
		certificate, err := at.value(c.ClientTLS.CertKey)
		if err != nil {
			return nil, err
		}
		key, err := at.value(c.ClientTLS.PrivateKeyKey)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, at.key("").problem("has no usable pair of certificate and key under " +
				c.ClientTLS.CertKey + " and " + c.ClientTLS.PrivateKeyKey + ": " + err.Error())
		}
		made.certificates = []tls.Certificate{pair}
		add(certificate, key)
	}
	switch {
	case c.Authorization != nil:
		made.authorization, made.secrets, err = c.token(contents)
	case c.BasicAuth != nil:
		made.authorization, made.secrets, err = c.userAndPassword(contents)
	}
	if err != nil {
		return nil, err
	}
	add([]byte(made.authorization))
	hash.Sum(made.identity[:0])
	return made, nil
}

func (c *connection) bundle(contents map[Reference]*Content) ([]byte, error) {
	if c.CABundle.Inline != nil {
		return []byte(*c.CABundle.Inline), nil
	}
	key, at := c.bundleAt(contents)
	return at.value(key)
}

func (c *connection) bundleAt(contents map[Reference]*Content) (string, place) {
	ref, kind := c.CABundle.SecretRef, KindSecret
	if ref == nil {
		ref, kind = c.CABundle.ConfigMapRef, KindConfigMap
	}
	return ref.Key, c.in(contents, "caBundle", Reference{kind, ref.Namespace, ref.Name}).key(ref.Key)
}

func (c *connection) token(contents map[Reference]*Content) (header string, secrets []string, err error) {
	ref := c.Authorization.SecretRef
	at := c.in(contents, "authorization", Reference{KindSecret, ref.Namespace, ref.Name})
	token, err := at.text(ref.Key)
	if err != nil {
		return "", nil, err
	}
	if token == "" {
		return "", nil, at.key(ref.Key).problem("is empty")
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", nil, at.key(ref.Key).problem("has characters in it that are not allowed in a header")
	}
	return c.Authorization.Type + " " + token, []string{token}, nil
}

// userAndPassword makes the header of RFC 7617. Either of both may be empty, as
// some services want it, but not both.
func (c *connection) userAndPassword(contents map[Reference]*Content) (header string, secrets []string, err error) {
	ref := c.BasicAuth.SecretRef
	at := c.in(contents, "basicAuth", Reference{KindSecret, ref.Namespace, ref.Name})
	user, err := at.text(c.BasicAuth.UsernameKey)
	if err != nil {
		return "", nil, err
	}
	password, err := at.text(c.BasicAuth.PasswordKey)
	if err != nil {
		return "", nil, err
	}
	switch {
	case strings.Contains(user, ":"):
		return "", nil, at.key(c.BasicAuth.UsernameKey).problem("has a colon in it, which a user name cannot have")
	case user == "" && password == "":
		return "", nil, at.key(c.BasicAuth.UsernameKey).problem("is empty, and so is the password")
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return schemeBasic + " " + encoded, []string{encoded, password}, nil
}

// place is a key of an object that a field of the spec refers to.
type place struct {
	content *Content
	at      CredentialError
}

func (c *connection) in(contents map[Reference]*Content, field string, ref Reference) place {
	return place{content: contents[ref], at: CredentialError{Field: c.path + "." + field, Reference: ref}}
}

func (p place) key(key string) place {
	p.at.Key = key
	return p
}

func (p place) problem(text string) error {
	err := p.at
	err.Problem = text
	return &err
}

func (p place) value(key string) ([]byte, error) {
	if p.content == nil {
		return nil, p.problem(ErrAbsent.Error())
	}
	value, ok := p.content.Data[key]
	if !ok {
		return nil, p.key(key).problem("is not there")
	}
	return value, nil
}

// text is a value without the line break that editors and shells put at its end.
// It has no control characters in it: those could end a header and begin another.
func (p place) text(key string) (string, error) {
	value, err := p.value(key)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(value))
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", p.key(key).problem("has control characters in it, such as a line break in the middle")
	}
	return text, nil
}
