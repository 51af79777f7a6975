package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/verify"
)

// defaultSecret is where cert-manager writes the guard's certificate.
const defaultSecret = pin.DefaultNamespace + "/metacontroller-guard-tls"

// verifyOptions are the flags of the verb verify.
type verifyOptions struct {
	output
	connection
	secret         string
	certificate    string
	minValidity    time.Duration
	timeoutSeconds int32
}

func verifyCommand(streams Streams) *cobra.Command {
	options := &verifyOptions{}
	command := &cobra.Command{
		Use:   "verify",
		Short: "Check an installation from the outside",
		Long: `Check an installation: the policy's conditions, the admission objects field by
field, the certificate that the API server has to trust, and with two dry runs
that a second instance is refused, by the guard and by the API server itself.

No port of the guard is needed, and nothing is stored or claimed. What you may
not read is skipped, and the missing permission is named. It exits with 1 if a
check failed.`,
		Example: `  guard verify
  guard verify -n default -o junit > verify.xml
  guard verify --certificate tls.crt --strict`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error { return options.run(command.Context(), streams) },
	}
	flags := command.Flags()
	options.connection.bind(flags)
	flags.StringVar(&options.secret, "tls-secret", defaultSecret, "Secret with the guard's certificate, as namespace/name.")
	flags.StringVar(&options.certificate, "certificate", "", "File with the guard's certificate, in place of the Secret.")
	flags.DurationVar(&options.minValidity, "min-validity", 7*24*time.Hour, "How long certificates should be valid for; less is a warning.")
	flags.Int32Var(&options.timeoutSeconds, "timeout-seconds", pin.DefaultTimeoutSeconds, "The --timeout-seconds that the admission objects were rendered with.")
	options.bindReport(command)
	return command
}

func (o *verifyOptions) run(ctx context.Context, streams Streams) error {
	if err := o.validate(); err != nil {
		return err
	}
	namespace, name, found := strings.Cut(o.secret, "/")
	if !found || namespace == "" || name == "" {
		return usageError{fmt.Errorf("--tls-secret %q names no Secret, write it as namespace/name", o.secret)}
	}
	options := verify.Options{Policy: o.policy, Secret: client.ObjectKey{Namespace: namespace, Name: name}, MinValidity: o.minValidity, Now: time.Now()}
	if o.certificate != "" {
		var err error
		if options.Certificate, err = os.ReadFile(o.certificate); err != nil {
			return usageError{fmt.Errorf("cannot read certificate %q: %w; give another with --certificate", o.certificate, err)}
		}
	}
	c, err := o.open()
	if err != nil {
		return err
	}
	options.Namespace = c.namespace
	sources, err := scanSources(c.client, pin.Options{TimeoutSeconds: o.timeoutSeconds})
	if err != nil {
		return err
	}
	report, err := verify.Run(ctx, verify.Deps{
		Client: c.client, Warnings: c.warnings.take,
		Rendered: sources.Admission, Drift: differences,
		WebhookConfiguration: pin.WebhookConfigurationName, Webhook: pin.WorkloadsWebhook, PinPolicy: pin.PolicyName,
	}, options)
	if err != nil {
		return c.unanswered(err)
	}
	if err := o.report(streams, report); err != nil {
		return err
	}
	if report.Count(finding.Passed) == 0 {
		// All that was skipped must not look like an installation in order.
		return clusterError{errors.New("nothing could be checked; ask for the permissions that are named above")}
	}
	return nil
}

func differences(installed, rendered map[string]any) []verify.Difference {
	var all []verify.Difference
	for _, d := range inspect.Drift(installed, rendered) {
		all = append(all, verify.Difference{Path: d.Path, Want: d.Want, Got: d.Got})
	}
	return all
}
