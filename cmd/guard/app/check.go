package app

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacontroller-solo/solo/pkg/guard/check"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/manifest"
)

// checkOptions are the flags of the verb check.
type checkOptions struct {
	output
	policyFile  string
	holder      string
	namespace   string
	maxDocument int
}

func checkCommand(streams Streams) *cobra.Command {
	options := &checkOptions{}
	command := &cobra.Command{
		Use:   "check FILE|FOLDER|-...",
		Short: "Judge manifests without a cluster",
		Long: `Judge manifests as the webhook would if they were applied one after the other to a
cluster without a Metacontroller, or with the one that --holder names. No cluster
is asked.

A SingletonPolicy among the manifests is the one that is judged by, wherever it
stands; else it is the default policy. A folder stands for its .yaml, .yml and
.json files and those of the folders within. What cannot be read is told with
file and line, and the rest is judged nevertheless.`,
		Example: `  guard check deploy/
  helm template metacontroller oci://example.com/chart | guard check -
  kustomize build overlays/prod | guard check --holder metacontroller/metacontroller -
  guard check -o sarif deploy/ > guard.sarif`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usageError{errors.New("nothing to check: name files, folders, or - for standard input")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return options.run(streams, args) },
	}
	flags := command.Flags()
	flags.StringVar(&options.policyFile, "policy", "", "File with the SingletonPolicy to judge by. Its status, as kubectl get -o yaml prints it, says who has the slot.")
	flags.StringVar(&options.holder, "holder", "", "StatefulSet that has the slot already, as namespace/name.")
	flags.StringVarP(&options.namespace, "namespace", "n", "default", "Namespace of objects that name none.")
	flags.IntVar(&options.maxDocument, "max-document", manifest.DefaultLimit>>20, "Largest document that is read, in MiB.")
	options.bindReport(command)
	return command
}

func (o *checkOptions) run(streams Streams, paths []string) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	if o.maxDocument < 1 || o.maxDocument > 1024 {
		return usageError{fmt.Errorf("--max-document %d is out of bounds, choose 1 to 1024", o.maxDocument)}
	}
	// There is nothing to put in order, and input may never end.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	request := check.Request{Namespace: o.namespace, Now: time.Now()}
	if o.policyFile != "" {
		if request.Policy, err = readPolicyFile(o.policyFile); err != nil {
			return usageError{err}
		}
	}
	if o.holder != "" {
		if request.Holder, err = parseHolder(o.holder); err != nil {
			return usageError{err}
		}
	}
	set, err := manifest.Open(paths, streams.In, o.maxDocument<<20)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	request.Set = set
	report, err := check.Run(request)
	if err != nil {
		return usageError{err}
	}
	if len(report.Faults) == 0 && report.Looks("object") == 0 {
		return usageError{fmt.Errorf("no object is in %s: did what should have written it fail?", strings.Join(paths, ", "))}
	}
	return o.report(streams, report)
}

// parseHolder reads namespace/name.
func parseHolder(text string) (*decide.Identity, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, fmt.Errorf("--holder %q names no StatefulSet, write it as namespace/name", text)
	}
	return &decide.Identity{Namespace: namespace, Name: name}, nil
}
