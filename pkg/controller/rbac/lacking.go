package rbac

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Advice is how to get what Lacking tells of.
const Advice = `"controller rbac --installed" prints the ClusterRole that gives it (docs/rbac.md)`

// refused is how the API server says that no role has a right. Who refuses by
// admission says it otherwise.
var refused = regexp.MustCompile(`User "[^"]*" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"`)

// finalizers is how OwnerReferencesPermissionEnforcement says it.
var finalizers = regexp.MustCompile(`cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on`)

// Lacking are the rights that an error of the API server says are missing, each
// once, as they would stand in a sentence; none if it says something else.
func Lacking(message string) []string {
	var rights []string
	for _, match := range refused.FindAllStringSubmatch(message, -1) {
		said := fmt.Sprintf("%s %q in API group %q", match[1], match[2], match[3])
		if !slices.Contains(rights, said) {
			rights = append(rights, said)
		}
	}
	if finalizers.MatchString(message) {
		rights = append(rights, `update the subresource "finalizers" of the parents`)
	}
	return rights
}

// Advised is a message with what Lacking finds in it, and Advice.
func Advised(message string) string {
	if rights := Lacking(message); len(rights) > 0 {
		message += fmt.Sprintf("; the controller lacks the right to %s: %s", strings.Join(rights, ", and to "), Advice)
	}
	return message
}
