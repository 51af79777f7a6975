package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/metacontroller-solo/solo/test/local/cluster"
)

// demoManifests are the folders of manifests, below the repository's root, that
// the demo applies in the person's name.
const (
	demoManifests   = "test/local/manifests/demo"
	secondManifests = "test/local/manifests/second"
)

// demonstration is the cluster before a person's eyes.
type demonstration struct {
	*cluster.Cluster
	console *console
}

// installHook installs the demo's CRD, rights and hook server.
func (c *demonstration) installHook(ctx context.Context) error {
	c.console.say("installing the demo's CRD, rights and hook server")
	if err := c.ApplyFolder(ctx, "test/local/manifests/hook"); err != nil {
		return fmt.Errorf("cannot install the demo's hook server: %w", err)
	}
	return c.Available(ctx, "demo", "deployment/greeting-hook")
}

// demo shows what the product does, and checks it. It returns the first step
// that is wrong.
func demo(ctx context.Context, c *demonstration) error {
	for _, step := range []func(context.Context, *demonstration) error{
		showInstallation,
		showComposite,
		showChange,
		showScale,
		showSecond("StatefulSet", "statefulset.yaml"),
		showSecond("Deployment", "deployment.yaml"),
		showAudit,
	} {
		if err := step(ctx, c); err != nil {
			return fmt.Errorf("step %d: %w", c.console.step, err)
		}
	}
	return nil
}

func showInstallation(ctx context.Context, c *demonstration) error {
	c.console.begin("One Metacontroller holds the slot",
		"HOLDER metacontroller/metacontroller, one Pod, and a Lease that names it")
	if err := cluster.Eventually(ctx, "the policy's holder is bound to the controller's StatefulSet", func(ctx context.Context) error {
		phase, err := c.Kubectl.Run(ctx, "get", "singletonpolicy", "metacontroller", "-o", "jsonpath={.status.holder.display} {.status.holder.phase}")
		if err != nil {
			return err
		}
		if phase != "metacontroller/metacontroller Bound" {
			return fmt.Errorf("holder and phase are %q", phase)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"get", "singletonpolicies"},
		{"get", "statefulsets,pods", "-n", "metacontroller"},
		{"get", "deployments,pods", "-n", "metacontroller-guard"},
		{"get", "lease", "metacontroller", "-n", "kube-system"},
	} {
		if _, err := c.console.show(ctx, c.Kubectl, args...); err != nil {
			return err
		}
	}
	holder, err := c.Kubectl.Run(ctx, "get", "lease", "metacontroller", "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(holder, "metacontroller-0_") {
		return fmt.Errorf("the Lease kube-system/metacontroller is held by %q, not by the Pod metacontroller-0", holder)
	}
	c.console.done("the Lease is held by " + holder)
	return nil
}

func showComposite(ctx context.Context, c *demonstration) error {
	c.console.begin("A hook is a controller",
		"three ConfigMaps appear that nobody wrote, and the parent's status is filled by the hook")
	for _, file := range []string{"controller.yaml", "greeting.yaml"} {
		if _, err := c.console.show(ctx, c.Kubectl, "apply", "-f", demoManifests+"/"+file); err != nil {
			return err
		}
	}
	if err := cluster.Eventually(ctx, "children and status", childrenAre(c, "Hello, ada!", "Hello, grace!", "Hello, linus!")); err != nil {
		return err
	}
	if _, err := c.console.show(ctx, c.Kubectl, "get", "greetings,configmaps", "-n", "demo"); err != nil {
		return err
	}
	c.console.done("3 children, status.wanted and status.observed are 3")
	return nil
}

func showChange(ctx context.Context, c *demonstration) error {
	c.console.begin("A change of the parent reaches its children; a deleted child comes back",
		"the new text in every ConfigMap, and hello-ada there again")
	if _, err := c.console.show(ctx, c.Kubectl, "patch", "greeting", "hello", "-n", "demo", "--type=merge", "-p", `{"spec":{"text":"Welcome"}}`); err != nil {
		return err
	}
	if err := cluster.Eventually(ctx, "the changed children", childrenAre(c, "Welcome, ada!", "Welcome, grace!", "Welcome, linus!")); err != nil {
		return err
	}
	if _, err := c.console.show(ctx, c.Kubectl, "delete", "configmap", "hello-ada", "-n", "demo"); err != nil {
		return err
	}
	if err := cluster.Eventually(ctx, "the deleted child again", childrenAre(c, "Welcome, ada!", "Welcome, grace!", "Welcome, linus!")); err != nil {
		return err
	}
	if _, err := c.console.show(ctx, c.Kubectl, "get", "configmaps", "-n", "demo", "-o", "custom-columns=NAME:.metadata.name,GREETING:.data.greeting", "--field-selector", "metadata.name!=kube-root-ca.crt"); err != nil {
		return err
	}
	c.console.done("changed in place, and healed")
	return nil
}

// childrenAre checks the ConfigMaps that belong to the demo's parent, and its
// status.
func childrenAre(c *demonstration, want ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := c.Kubectl.Run(ctx, "get", "configmaps", "-n", "demo", "--sort-by=.metadata.name", "--field-selector", "metadata.name!=kube-root-ca.crt",
			"-o", `jsonpath={range .items[*]}{.data.greeting}{"\n"}{end}`)
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(got); got != strings.Join(want, "\n") {
			return fmt.Errorf("the children say %q", got)
		}
		status, err := c.Kubectl.Run(ctx, "get", "greeting", "hello", "-n", "demo", "-o", "jsonpath={.status.wanted} {.status.observed} {.status.observedGeneration} {.metadata.generation}")
		if err != nil {
			return err
		}
		fields := strings.Fields(status)
		if count := fmt.Sprint(len(want)); len(fields) != 4 || fields[0] != count || fields[1] != count || fields[2] != fields[3] {
			return fmt.Errorf("wanted, observed, observedGeneration and generation are %q", status)
		}
		return nil
	}
}

func showScale(ctx context.Context, c *demonstration) error {
	c.console.begin("The controller cannot be scaled to two",
		"a refusal that names the rule scale-above-one and the holder")
	if err := c.refused(ctx, "scale-above-one", "scale", "statefulset", "metacontroller", "-n", "metacontroller", "--replicas=2"); err != nil {
		return err
	}
	replicas, err := c.Kubectl.Run(ctx, "get", "statefulset", "metacontroller", "-n", "metacontroller", "-o", "jsonpath={.spec.replicas}")
	if err != nil {
		return err
	}
	if replicas != "1" {
		return fmt.Errorf("the StatefulSet has %s replicas", replicas)
	}
	c.console.done("still one replica")
	return nil
}

// showSecond tries to install another Metacontroller beside the one that runs.
func showSecond(kind, file string) func(context.Context, *demonstration) error {
	return func(ctx context.Context, c *demonstration) error {
		c.console.begin("A second Metacontroller is refused: the public image as a "+kind+", in another namespace",
			"a refusal that names the rule second-workload and the holder metacontroller/metacontroller")
		if _, err := c.Kubectl.Run(ctx, "apply", "-f", secondManifests+"/namespace.yaml"); err != nil {
			return err
		}
		if err := c.refused(ctx, "second-workload", "apply", "-f", secondManifests+"/"+file); err != nil {
			return err
		}
		left, err := c.Kubectl.Run(ctx, "get", "statefulsets,deployments,replicasets,pods", "-n", "second", "-o", "name")
		if err != nil {
			return err
		}
		if left != "" {
			return fmt.Errorf("the namespace second is not empty: %s", left)
		}
		c.console.done("nothing was made")
		return nil
	}
}

// refused runs a kubectl command that the guard must refuse with a rule, and
// with the holder's name.
func (c *demonstration) refused(ctx context.Context, rule string, args ...string) error {
	output, err := c.console.show(ctx, c.Kubectl, args...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err == nil:
		return errors.New("the command was not refused")
	case !strings.Contains(output, rule):
		return fmt.Errorf("the refusal does not name the rule %q: %w", rule, err)
	case !strings.Contains(output, "metacontroller/metacontroller"):
		return fmt.Errorf("the refusal does not name the holder metacontroller/metacontroller: %w", err)
	}
	return nil
}

func showAudit(ctx context.Context, c *demonstration) error {
	c.console.begin("The guard's decisions are in its audit log",
		`one JSON line for each refusal above, with rule, user, object, holder: "decision":"Deny"`)
	var lines []string
	if err := cluster.Eventually(ctx, "an audit line of each refusal", func(ctx context.Context) error {
		output, err := c.Kubectl.Run(ctx, "logs", "-n", "metacontroller-guard", "-l", "app.kubernetes.io/name=metacontroller-guard", "--tail=-1", "--prefix=false")
		if err != nil {
			return err
		}
		lines = lines[:0]
		missing := map[string]bool{"StatefulSet": true, "Deployment": true, "scale": true}
		for line := range strings.Lines(output) {
			line = strings.TrimSpace(line)
			if !strings.Contains(line, `"decisionID"`) || !strings.Contains(line, `"decision":"Deny"`) || !strings.Contains(line, `"dryRun":false`) {
				continue
			}
			lines = append(lines, line)
			switch {
			case strings.Contains(line, `"rule":"scale-above-one"`):
				delete(missing, "scale")
			case strings.Contains(line, `"rule":"second-workload"`) && strings.Contains(line, `"kind":"StatefulSet"`):
				delete(missing, "StatefulSet")
			case strings.Contains(line, `"rule":"second-workload"`) && strings.Contains(line, `"kind":"Deployment"`):
				delete(missing, "Deployment")
			}
		}
		for what := range missing {
			return fmt.Errorf("no audit line of the refused %s", what)
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Fprintf(c.console.out, "   $ kubectl logs -n metacontroller-guard -l app.kubernetes.io/name=metacontroller-guard | grep '\"decision\":\"Deny\"'\n")
	for _, line := range lines {
		fmt.Fprintf(c.console.out, "     %s\n", line)
	}
	c.console.done(fmt.Sprintf("%d audit lines", len(lines)))
	return nil
}
