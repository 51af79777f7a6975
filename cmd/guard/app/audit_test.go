package app

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/metacontroller-solo/solo/pkg/guard/audit"
)

func TestSchemaVerb(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := Main([]string{programName, "schema"}, Streams{Out: &stdout, Err: &stderr}); code != exitOK || stderr.Len() > 0 || !bytes.Equal(stdout.Bytes(), audit.Schema()) {
		t.Fatalf("exit code %d, %s", code, &stderr)
	}
	if code := Main([]string{programName, "schema", "record"}, Streams{Out: &stdout, Err: &stderr}); code != exitUsage {
		t.Fatalf("exit code %d", code)
	}
}

func TestAuditFlags(t *testing.T) {
	page, err := os.ReadFile("../../../docs/audit-log.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| `?([^ `]+)`? \\|").FindAllStringSubmatch(string(page), -1) {
		rows[row[1]] = row[2]
	}
	options := &auditOptions{}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	options.bind(flags)
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "audit-repeat-interval" {
			flag.DefValue = strings.TrimSuffix(flag.DefValue, "0s")
		}
		if rows[flag.Name] != flag.DefValue {
			t.Errorf("--%s defaults to %q, in the docs to %q", flag.Name, flag.DefValue, rows[flag.Name])
		}
		delete(rows, flag.Name)
	})
	for name := range rows {
		t.Errorf("the docs have --%s, serve has not", name)
	}
	if err := options.validate(); err != nil {
		t.Fatal(err)
	}
	for flag, wrong := range map[string]string{
		"audit-log": "", "audit-log-max-size": "0", "audit-log-max-backups": "-1", "audit-log-max-age": "-1", "audit-repeat-interval": "-1s",
	} {
		options := &auditOptions{}
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		options.bind(flags)
		if err := flags.Set(flag, wrong); err != nil {
			t.Fatal(err)
		}
		if err := options.validate(); err == nil || !strings.Contains(err.Error(), "--"+flag) {
			t.Errorf("--%s=%s: %v", flag, wrong, err)
		}
	}
}
