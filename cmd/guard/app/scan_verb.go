package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/scan"
)

// scanOptions are the flags of the verb scan.
type scanOptions struct {
	output
	connection
	timeoutSeconds int32
}

func scanCommand(streams Streams) *cobra.Command {
	options := &scanOptions{}
	command := &cobra.Command{
		Use:   "scan",
		Short: "Look at a cluster for what admission cannot see",
		Long: `Look at a cluster once: instances that should not be there, workloads that would
run some, writers that are not the active Pod, the guard's own objects changed or
missing. It only reads, and shows what the guard that runs would write into the
policy's status. What you may not read is a finding. It exits with 1 if something
is not as it should be.`,
		Example: `  guard scan
  guard scan --context prod -o json`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error { return options.run(command.Context(), streams) },
	}
	options.connection.bind(command.Flags())
	command.Flags().Int32Var(&options.timeoutSeconds, "timeout-seconds", pin.DefaultTimeoutSeconds, "The --timeout-seconds that the admission objects were rendered with.")
	options.bindReport(command)
	return command
}

func (o *scanOptions) run(ctx context.Context, streams Streams) error {
	if err := o.validate(); err != nil {
		return err
	}
	c, err := o.open()
	if err != nil {
		return err
	}
	sources, err := scanSources(c.client, pin.Options{TimeoutSeconds: o.timeoutSeconds})
	if err != nil {
		return err
	}
	sources.Silence = guardSilence(c.client, pin.DefaultNamespace, defaultLease)
	result, err := scan.Run(ctx, c.client, scan.Options{Policy: o.policy, Now: time.Now(), Sources: sources})
	if err != nil {
		return c.unanswered(err)
	}
	report := &finding.Report{Verb: "scan"}
	report.Look("instance", result.Running)
	for _, f := range result.Findings {
		report.Add(scanFinding(f))
	}
	for _, instance := range result.Instances {
		if instance.Verdict != guardv1alpha1.InstanceViolation {
			report.Add(finding.Finding{Level: finding.Passed, Object: &finding.Object{APIVersion: "v1", Kind: "Pod", Namespace: instance.Namespace, Name: instance.Name}, Message: "an instance that may be there"})
		}
	}
	return o.report(streams, report)
}

// scanFinding is a finding of the scan as a report has it.
func scanFinding(f scan.Finding) finding.Finding {
	level := finding.Warning
	if f.ID.Violation() || f.ID.Drift() {
		level = finding.Violation
	}
	if f.ID == inspect.Unreadable {
		level = finding.Skipped
	}
	message := f.Message
	if f.Fix != "" {
		message += "\nNext: " + f.Fix
	}
	return finding.Finding{
		Level: level, Rule: string(f.ID), Message: message,
		Object: &finding.Object{APIVersion: f.Object.APIVersion, Kind: f.Object.Kind, Namespace: f.Object.Namespace, Name: f.Object.Name},
	}
}
