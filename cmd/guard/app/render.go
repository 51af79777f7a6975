package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/check"
	"github.com/metacontroller-solo/solo/pkg/guard/manifest"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
)

func renderCommand(stdout io.Writer) *cobra.Command {
	options := pin.Options{}
	caFile, policyFile, holder, static := "", "", "", false
	command := &cobra.Command{
		Use:   "render",
		Short: "Print the admission objects as YAML",
		Long: `Print the admission objects as YAML: those that are applied, or, with --static,
those that API servers read from their own disk and that nobody can delete through
the API.`,
		Example: `  guard render | kubectl apply -f -
  guard render --policy-file policy.yaml --ca-file ca.crt
  guard render --static --holder metacontroller/metacontroller > /etc/kubernetes/admission/policies/guard.yaml`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			if caFile != "" {
				bundle, err := os.ReadFile(caFile) //nolint:gosec // The path is the operator's.
				if err != nil {
					return usageError{fmt.Errorf("cannot read CA bundle %q: %w; give another with --ca-file", caFile, err)}
				}
				options.CABundle = bundle
			}
			if policyFile != "" {
				policy, err := readPolicyFile(policyFile)
				if err != nil {
					return usageError{err}
				}
				if static && policy.Spec.Mode != "" && policy.Spec.Mode != guardv1alpha1.ModeStrict {
					return usageError{fmt.Errorf("--static is for mode Strict, and the mode of %q is %s", policyFile, policy.Spec.Mode)}
				}
				if holder == "" && static && policy.Spec.Holder != nil {
					holder = policy.Spec.Holder.Namespace + "/" + policy.Spec.Holder.Name
				}
				options.Match = policy.Spec.Match
				if options.SingletonPolicy == "" {
					options.SingletonPolicy = policy.Name
				}
			}
			if options.TimeoutSeconds < 1 || options.TimeoutSeconds > 30 {
				return usageError{fmt.Errorf("--timeout-seconds %d is out of bounds, choose 1 to 30", options.TimeoutSeconds)}
			}
			output, err := rendered(options, static, holder)
			if err != nil {
				return err
			}
			_, err = stdout.Write(output)
			return err
		},
	}
	flags := command.Flags()
	flags.BoolVar(&static, "static", false, "Print policies for manifest-based admission (kube-apiserver 1.37), which read no SingletonPolicy: the match and --holder are written in.")
	flags.StringVar(&holder, "holder", "", "The one StatefulSet that may run an instance, as namespace/name; for --static. Left out: spec.holder of --policy-file.")
	flags.StringVar(&options.SingletonPolicy, "policy", "", "Name of the SingletonPolicy that the objects read. Left out: the default one.")
	flags.StringVar(&policyFile, "policy-file", "", "File with that SingletonPolicy, whose spec.match the webhooks' conditions are to fit: render again when it changes. Left out: the match that the CRD fills in.")
	flags.StringVar(&options.Namespace, "namespace", pin.DefaultNamespace, "Namespace of the guard's Service.")
	flags.StringVar(&options.Service, "service", pin.DefaultService, "Name of the guard's Service.")
	flags.StringVar(&options.URL, "url", "", "URL of the guard, path included, in place of the Service.")
	flags.StringVar(&caFile, "ca-file", "", "File with the PEM bundle that the guard's certificate is checked with. Left out: cert-manager's CA injector fills it in.")
	flags.Int32Var(&options.TimeoutSeconds, "timeout-seconds", pin.DefaultTimeoutSeconds, "How long the API server waits for the guard.")
	return command
}

// rendered are the manifests. Its errors are usage errors: all that is rendered
// comes from the command line.
func rendered(options pin.Options, static bool, holder string) ([]byte, error) {
	if !static {
		if holder != "" {
			return nil, usageError{errors.New("--holder is for --static; elsewhere spec.holder of the policy says it")}
		}
		output, err := pin.YAML(options)
		if err != nil {
			return nil, usageError{err}
		}
		return output, nil
	}
	if holder == "" {
		return nil, usageError{errors.New("--static needs --holder namespace/name, for static policies read no object")}
	}
	id, err := parseHolder(holder)
	if err != nil {
		return nil, usageError{err}
	}
	output, err := pin.StaticYAML(options, guardv1alpha1.HolderReference{Namespace: id.Namespace, Name: id.Name})
	if err != nil {
		return nil, usageError{err}
	}
	return output, nil
}

// readPolicyFile reads a SingletonPolicy. A field that its CRD does not know is
// an error: a misspelt one would be left out in silence.
func readPolicyFile(path string) (*guardv1alpha1.SingletonPolicy, error) {
	set, err := manifest.Open([]string{path}, strings.NewReader(""), 0)
	if err != nil {
		return nil, err
	}
	var policies []*guardv1alpha1.SingletonPolicy
	for object, err := range set.Objects(nil) {
		if err != nil {
			return nil, fmt.Errorf("cannot read the policy: %w", err)
		}
		policy, err := check.Policy(object)
		if err != nil {
			return nil, &manifest.Error{File: object.File, Line: object.Line, Err: err}
		}
		policies = append(policies, policy)
	}
	if len(policies) != 1 {
		return nil, fmt.Errorf("%s: want one SingletonPolicy, got %d", path, len(policies))
	}
	return policies[0], nil
}
