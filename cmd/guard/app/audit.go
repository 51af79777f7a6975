package app

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/metacontroller-solo/solo/pkg/guard/announce"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/pkg/guard/owner"
)

// auditOptions are the flags of the audit log.
type auditOptions struct {
	log            string
	rotation       audit.Rotation
	repeatInterval time.Duration
}

// Defaults of a file's rotation: at most about a gigabyte, for a month.
const (
	defaultMaxSize    = 100
	defaultMaxBackups = 10
	defaultMaxAge     = 30
)

func (o *auditOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.log, "audit-log", audit.StandardOutput, "File to which decisions are appended, one JSON object a line; - for standard output. \"guard schema\" describes the lines.")
	flags.IntVar(&o.rotation.MaxSize, "audit-log-max-size", defaultMaxSize, "MiB that the audit log's file grows to before it is moved aside.")
	flags.IntVar(&o.rotation.MaxBackups, "audit-log-max-backups", defaultMaxBackups, "How many files that were moved aside are kept; 0 for all.")
	flags.IntVar(&o.rotation.MaxAge, "audit-log-max-age", defaultMaxAge, "Days for which files that were moved aside are kept; 0 for ever.")
	flags.DurationVar(&o.repeatInterval, "audit-repeat-interval", audit.DefaultRepeatInterval, "How long decisions that only repeat an earlier one are counted before the audit log has a line with their number; 0 gives each its own line.")
}

func (o *auditOptions) validate() error {
	switch {
	case o.log == "":
		return errors.New("--audit-log is empty, use - for standard output, or a path")
	case o.rotation.MaxSize < 1:
		return fmt.Errorf("--audit-log-max-size %d is too small, choose 1 or more", o.rotation.MaxSize)
	case o.rotation.MaxBackups < 0 || o.rotation.MaxAge < 0:
		return errors.New("--audit-log-max-backups and --audit-log-max-age must not be negative")
	case o.repeatInterval < 0:
		return errors.New("--audit-repeat-interval must not be negative")
	}
	return nil
}

// startAudit starts the audit log, which closes the sink at its end, and makes
// what announces its lines as Events.
func startAudit(config *rest.Config, options *serveOptions, live client.Reader, manager ctrl.Manager, sink io.WriteCloser) (*audit.Log, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot build a client for %s: %w", config.Host, err)
	}
	owners := owner.New(live)
	announcer, err := announce.New(announce.Deps{
		Policies: manager.GetClient(),
		Owners:   owners.Of,
		Sink:     &typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")},
		Replica:  options.replica,
		Registry: ctrlmetrics.Registry,
	})
	if err != nil {
		return nil, err
	}
	if err := manager.Add(announcer); err != nil {
		return nil, fmt.Errorf("cannot add the announcer: %w", err)
	}
	logger := manager.GetLogger()
	return audit.New(sink, audit.Options{
		Replica:        options.replica,
		Registry:       ctrlmetrics.Registry,
		RepeatInterval: options.audit.repeatInterval,
		Owners:         owners.Of,
		Notify:         announcer.Tell,
		Report:         func(err error) { logger.Error(err, "Cannot write the audit log") },
	})
}

func schemaCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the audit log's lines",
		Long:  "Schema prints the JSON Schema that each line of the audit log validates against. docs/audit-log.md says what the fields mean.",
		Example: `  guard schema > audit-schema.json
`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := stdout.Write(audit.Schema())
			return err
		},
	}
}
